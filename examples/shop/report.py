"""The report: one page with the charts and the counts of a run, and the commands to check them."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

from examples import svg
from examples.shop import damage, stream_report
from examples.shop.crew import VICTIMS, WRITERS
from examples.shop.outcome import Outcome
from examples.shop.spread import spread

WAYS = {
    "append": "append: one record",
    "transaction": "transaction: an order and its payment",
    "extend": "extend: 200 records",
    "producer": "producer: 50 records in the background",
}


def page(outcome: Outcome, log: Path, copy: Path) -> str:
    """Return the whole page."""
    sections = [
        ("Counted, not claimed", _counts(outcome)),
        ("Write and kill", _throughput(outcome)),
        ("How long a write takes", _writes(outcome)),
        ("How long until another process reads it", _reads(outcome)),
        ("Work", _work(outcome)),
        *([("Stream", stream_report.section(outcome.streamed, outcome.visits))] if outcome.streamed else []),
        ("Once", _once(outcome)),
        ("Forget", _forgotten(outcome)),
        ("Ask", _answers(outcome)),
        ("Prove", _proof(outcome)),
        ("Look for yourself", _commands(outcome, log, copy)),
    ]
    return svg.page("A tea shop's day on Tailrace", sections)


def _counts(outcome: Outcome) -> str:
    audit = outcome.audit
    figures = svg.numbers(
        {
            "acknowledged": f"{audit.acknowledged:,}",
            "found": f"{audit.found:,}",
            "lost": f"{audit.lost:,}",
            "doubled": f"{audit.doubled:,}",
            "writers killed": f"{outcome.kills:,}",
            "transactions": f"{audit.transactions:,}",
            "of them torn": f"{audit.transactions_torn:,}",
            "seen by the follower": f"{sum(outcome.followed.counts.values()):,}",
        }
    )
    verdict = "".join(f"<p><strong>FAILED: {escape(fault)}</strong></p>" for fault in outcome.faults())
    return (
        verdict
        + figures
        + _paragraph(
            "Every writer notes each acknowledgement in a file of its own. At the end the whole log is read, and each "
            "noted record must stand, once, in the very place that was promised. "
            f"{audit.unnoted:,} more records were kept whose writer was killed before it could make its note."
        )
    )


def _throughput(outcome: Outcome) -> str:
    back = spread(outcome.audit.takeovers_us)
    marks = [(seconds, f"kill {number}") for number, seconds in enumerate(outcome.kill_seconds, 1)]
    chart = svg.line_chart(
        "Records appended a second, all on disk when acknowledged",
        {"records/s": outcome.throughput},
        marks=marks,
        x_label="seconds",
        y_label="records/s",
    )
    return chart + _paragraph(
        f"{len(WRITERS)} processes write; at each mark {len(VICTIMS)} of them get kill -9 and are started again. "
        f"A new process had its first record on disk {back.p50:,.0f} ms after the kill (slowest {back.max:,.0f} ms), "
        f"the start of Python included. The longest that one of the others waited was "
        f"{outcome.audit.bystander_us_max / 1_000:,.0f} ms."
    )


def _writes(outcome: Outcome) -> str:
    latencies = outcome.audit.latencies_us
    chart = svg.histogram(
        "One durable append, from the call to its return",
        [latency / 1_000 for latency in latencies.get("append", [])],
        logarithmic=True,
        x_label="milliseconds",
        y_label="appends",
    )
    rows = []
    for way, name in WAYS.items():
        taken = spread(latencies.get(way, []))
        rows.append((name, f"{taken.samples:,}", *(f"{value:,.2f}" for value in (taken.p50, taken.p99, taken.max))))
    return chart + svg.table(("way of writing", "calls", "p50 ms", "p99 ms", "slowest ms"), rows)


def _reads(outcome: Outcome) -> str:
    latencies = outcome.followed.latencies_us
    read = spread(latencies)
    chart = svg.histogram(
        "From the call of append to the record in another process",
        [latency / 1_000 for latency in latencies],
        logarithmic=True,
        x_label="milliseconds",
        y_label="records",
    )
    return chart + _paragraph(
        f"Half of the {read.samples:,} records were read {read.p50:.2f} ms after their append began, 99 of 100 after "
        f"{read.p99:.2f} ms. The way to the disk is in it, and so is the wait of a record for the rest of its batch."
    )


def _work(outcome: Outcome) -> str:
    worked = outcome.worked
    chart = svg.line_chart(
        "Orders that the group has not billed yet",
        {"lag": worked.lag},
        marks=[(worked.kill_second, "kill")],
        x_label="seconds",
        y_label="orders",
    )
    before, after = ", ".join(map(str, worked.shares)), ", ".join(map(str, worked.shares_after))
    return chart + _paragraph(
        f"Three processes of one group share the partitions of orders ({before} each) and append an invoice for every "
        f"order, in transactions that move the group's cursors as well. One gets kill -9: "
        f"{worked.takeover_ms:,.0f} ms later its partitions belong to the others ({after}). In the end "
        f"{worked.invoices:,} invoices stand for {worked.orders:,} orders: {worked.missed:,} missed, "
        f"{worked.doubled:,} doubled."
    )


def _answers(outcome: Outcome) -> str:
    tools = [f"{answer.tool} ({answer.seconds * 1_000:,.0f} ms)" for answer in outcome.answers]
    products = sorted(outcome.answers[0].cents, key=lambda product: -outcome.answers[0].cents[product])
    rows = [
        (product, *(f"{answer.cents.get(product, 0) / 100:,.2f}" for answer in outcome.answers)) for product in products
    ]
    chart = svg.bar_chart("Sales by hour", outcome.sales, x_label="hour of the day", y_label="euros")
    return chart + "<h3>Revenue by product, in euros</h3>" + svg.table(("product", *tools), rows)


def _once(outcome: Outcome) -> str:
    found = outcome.once
    lines = [f"{found.payments:,} payments sent {found.sent:,} times: {found.stored:,} stored, {found.doubled} doubled"]
    lines += [f"{found.repeated:,} imports run a second time; {found.imported_doubled:,} of their lines doubled"]
    lines += [f"{found.refused:,} payments without an amount refused: {found.told}"]
    return _block(lines)


def _forgotten(outcome: Outcome) -> str:
    found = outcome.forgotten
    sizes = {"before": found.bytes_before, "after the vacuum": found.bytes_after, "of it live": found.bytes_live}
    chart = svg.bar_chart("Bytes of the carts on disk", {name: float(size) for name, size in sizes.items()})
    lines = [f"{found.carts:,} carts, {found.carts_shown:,} of them still alive and shown"]
    lines += [f"{found.letters:,} letters to customers, {found.deleted:,} deleted by their offsets"]
    lines += [f"{found.erased:,} letters of one customer erased; {len(found.files)} files hold a line of them"]
    lines += [f"not reached: {each}" for each in found.unreached]
    return chart + _block(lines)


def _proof(outcome: Outcome) -> str:
    report, proof = outcome.report, outcome.proof
    checked = f"{report.checked_records:,} records, the catalog's included, in {report.checked_bytes:,} bytes"
    lines = [f"the log: {checked}, {len(report.damage)} damaged ranges"]
    lines += [f"the copy: byte {proof.position:,} of {proof.file} flipped"]
    lines += [f"verify: {damage.where(each)} is damaged: {each.reason}" for each in proof.report.damage]
    lines += [f"a reader is told: {proof.told or 'NOTHING'}"]
    lines += [f"the rest: {proof.rest_records:,} records{', each as in the log' if proof.rest_equal else ''}"]
    return _paragraph("The log is verified; then one bit of one byte is flipped in a copy of it.") + _block(lines)


def _commands(outcome: Outcome, log: Path, copy: Path) -> str:
    shop, damaged = _shown(log), _shown(copy)
    found = outcome.proof.damage
    first = 0 if found is None else found.first
    return _paragraph("The log is still there. In the directory of the project:") + _block(
        [
            "export PATH=$PWD/.venv/bin:$PATH",
            f"export TAILRACE_LOG={shop}",
            "",
            "# Write",
            'tailrace append orders \'{"product": "sencha", "cents": 890}\' -k customer-42',
            "# Kill: the whole demo again, with other moments to die at",
            "./demo --seconds 20",
            "# Read",
            "tailrace topic ls",
            "tailrace read orders -n 5",
            "tailrace stats",
            "# Work",
            "tailrace group show billing",
            *(stream_report.commands(shop) if outcome.streamed else []),
            "# Ask",
            "python <<'END'",
            "import duckdb, tailrace",
            f"orders = tailrace.open('{shop}', 'r').topic('orders').read()",
            "sales = orders.to_arrow(json=True)",
            "print(duckdb.sql('SELECT product, sum(cents) FROM sales GROUP BY product'))",
            "print(orders.to_polars(json=True).select('product', 'cents').group_by('product').sum())",
            "END",
            "# Prove",
            "tailrace verify",
            f"tailrace verify -L {damaged}",
            f"tailrace get clicks {first} -L {damaged}",
        ]
    )


def _shown(path: Path) -> str:
    """Return a path as typed in the directory of the project."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _block(lines: list[str]) -> str:
    return f"<pre>{escape(chr(10).join(lines))}</pre>"
