"""The demo: write, kill, work, stream, ask, prove, and a page with charts at the end."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from examples.shop import audit as audits
from examples.shop import damage, questions, sessions
from examples.shop import forget as forgetting
from examples.shop import once as writing
from examples.shop.crew import ROOT, VICTIMS, WRITERS, Crew
from examples.shop.day import TOPICS
from examples.shop.follower import followed
from examples.shop.forget import Forgotten
from examples.shop.meter import Meter
from examples.shop.once import Once
from examples.shop.outcome import Outcome
from examples.shop.report import page
from examples.shop.screen import Screen
from examples.shop.spread import spread
from examples.shop.stream import Stream, Streamed, StreamError
from examples.shop.work import MEMBERS, Worked, work

import tailrace

ROUNDS = 5
TICK_SECONDS = 0.2
# The share of the time before the first kill.
CALM = 0.35
# A busy machine gets more time, until there are enough records to work with.
RECORDS_MIN = 5_000
PATIENCE_SECONDS = 60.0


class Demo:
    """One run."""

    def __init__(self, directory: Path, seconds: float, *, spark: bool) -> None:
        self.log_path = directory / "shop"
        self.notebooks = directory / "acknowledged"
        self.copy = directory / "damaged-copy"
        self.seconds = seconds
        self.screen = Screen()
        self.stream = Stream(self.log_path, directory / "spark") if spark else None
        self._act = 0

    def run(self) -> Outcome:
        try:
            return self.play()
        finally:
            if self.stream is not None:
                self.stream.end()

    def play(self) -> Outcome:
        self.notebooks.mkdir(parents=True)
        with tailrace.open(self.log_path) as log:
            for name, partitions in {**TOPICS, sessions.TARGET: sessions.PARTITIONS}.items():
                log.topic(name, partitions=partitions)
            crew = Crew(self.log_path, self.notebooks)
            if self.stream is not None:
                # Java takes its time to start, and the acts before its own are long enough for it.
                self.stream.start()
            try:
                meter, kill_seconds = self.write_and_kill(log, crew)
            finally:
                crew.abandon()
        with tailrace.open(self.log_path, "r") as log:
            contents = self.count(log)
            audit = audits.audit(contents, self.notebooks, crew.kills)
            read = followed(self.notebooks)
            self.tell_counts(audit, sum(read.counts.values()))
        with tailrace.open(self.log_path) as log:
            worked = self.work(log)
            streamed, told = self.finish_stream(log, crew.opened, contents)
            once = self.write_once(log)
            forgotten = self.forget(log)
        with tailrace.open(self.log_path, "r") as log:
            answers, visits = self.ask(log, told)
            report, proof = self.prove(log)
            sales = questions.sales_by_hour(log)
        return Outcome(
            meter.throughput(), kill_seconds, len(crew.kills), audit, read, worked, streamed, answers, visits, sales,
            report, proof, once, forgotten,
        )  # fmt: skip

    def heading(self, text: str) -> None:
        self._act += 1
        self.screen.heading(f"{self._act}. {text}")

    def write_and_kill(self, log: tailrace.Log, crew: Crew) -> tuple[Meter, list[float]]:
        screen = self.screen
        self.heading(f"Write: {len(WRITERS)} processes append, and what is acknowledged is on disk")
        if self.stream is not None:
            screen.say("  Spark starts in the background, to make sessions of the clicks while they come in")
        meter = Meter(log)
        crew.start()
        calm = self.seconds * CALM
        self.watch(meter, calm)
        victims = " and ".join(map(str, VICTIMS))
        self.heading(f"Kill: writers {victims} get kill -9, {ROUNDS} times, while a follower reads along")
        stretch = (self.seconds - calm) / ROUNDS
        kill_seconds = []
        for number in range(ROUNDS):
            # Anywhere in the middle of its stretch, so that each kill hits the writers in a different operation.
            self.watch(meter, calm + stretch * (number + random.uniform(0.3, 0.7)))
            kill_seconds.append(monotonic() - meter.began)
            crew.kill()
            screen.say(f"  {kill_seconds[-1]:5.1f} s   kill {number + 1}: writers {victims} killed and started again")
        self.watch(meter, self.seconds)
        while meter.samples[-1].records < RECORDS_MIN and monotonic() - meter.began < self.seconds + PATIENCE_SECONDS:
            self.watch(meter, monotonic() - meter.began + TICK_SECONDS)
        screen.settle()
        crew.end()
        return meter, kill_seconds

    def watch(self, meter: Meter, until: float) -> None:
        """Show the progress until `until` seconds after the start."""
        while (left := meter.began + until - monotonic()) > 0:
            sleep(min(TICK_SECONDS, left))
            self.screen.progress(meter.tick())
            if self.stream is not None and self.stream.kill_when_due(meter.log):
                self.screen.say(f"  {monotonic() - meter.began:5.1f} s   {self.tell_kill(self.stream)}")

    def tell_kill(self, stream: Stream) -> str:
        killed = stream.killed
        if killed is None:
            return "the Spark driver is alive"
        when = f"while batch {killed.batch} ran" if killed.begun else f"before batch {killed.batch}"
        return f"the Spark driver and its Java killed {when} ({killed.processes} processes), and started again"

    def count(self, log: tailrace.Log) -> audits.Contents:
        self.screen.say("  reading the whole log and comparing it with what was acknowledged ...")
        began = perf_counter()
        contents = audits.read_everything(log)
        self.screen.say(f"  read {contents.total:,} records in {perf_counter() - began:.1f} s")
        return contents

    def tell_counts(self, audit: audits.Audit, read: int) -> None:
        say = self.screen.say
        say(
            f"  acknowledged {audit.acknowledged:,}   found {audit.found:,}   lost {audit.lost:,}   "
            f"doubled {audit.doubled:,}"
        )
        say(
            f"  {audit.transactions:,} transactions, {audit.transactions_torn:,} torn   "
            f"the follower saw {read:,} of {audit.records:,} records"
        )
        say(f"  {audit.unnoted:,} more were kept whose writer died before it could note the acknowledgement")
        back = spread(audit.takeovers_us)
        say(
            f"  a killed writer was back at work after {back.p50:,.0f} ms (slowest {back.max:,.0f} ms); "
            f"the others waited {audit.bystander_us_max / 1_000:,.0f} ms at most"
        )

    def work(self, log: tailrace.Log) -> Worked:
        screen = self.screen
        self.heading(f"Work: {MEMBERS} members of a group turn orders into invoices, and one gets kill -9")
        worked = work(log, self.log_path, screen.progress)
        screen.settle()
        screen.say(
            f"  shares {worked.shares} before the kill, {worked.shares_after} after it; "
            f"taken over in {worked.takeover_ms:,.0f} ms"
        )
        screen.say(
            f"  orders {worked.orders:,}   invoices {worked.invoices:,}   missed {worked.missed:,}   "
            f"doubled {worked.doubled:,}   lag {worked.lag[-1][1]:,.0f}"
        )
        return worked

    def finish_stream(
        self, log: tailrace.Log, opened: float, contents: audits.Contents
    ) -> tuple[Streamed | None, dict[str, Any]]:
        stream, screen = self.stream, self.screen
        if stream is None:
            return None, {}
        self.heading("Stream: Spark makes sessions of the clicks, exactly once, with its driver killed once")
        began = monotonic()

        def tell() -> None:
            screen.progress(f"  {monotonic() - began:5.1f} s   {stream.state()}")

        stream.close_shop(log, opened)
        if stream.killed is None:
            stream.kill_at_once(log, tell)
            screen.say(f"  {monotonic() - began:5.1f} s   {self.tell_kill(stream)}")
        answers = stream.finish(tell)
        screen.settle()
        assert stream.killed is not None
        streamed = Streamed(opened, stream.killed, stream.diary.batches, sessions.compare(log, contents.visits))
        self.tell_stream(streamed)
        return streamed, answers

    def tell_stream(self, streamed: Streamed) -> None:
        killed, compared = streamed.killed, streamed.comparison
        written = "its sessions stood in the topic already" if killed.written else "nothing of it was in the topic"
        if killed.begun:
            self.screen.say(f"  batch {killed.batch} was run again after the kill: {written}")
        self.screen.say(
            f"  {len(streamed.batches):,} batches; the first one after the kill was done {streamed.back_seconds:.1f} s "
            f"later, the start of Java included"
        )
        self.screen.say(
            f"  sessions expected {compared.expected:,}   found {compared.found:,}   lost {compared.lost:,}   "
            f"doubled {compared.doubled:,}   wrong {compared.wrong:,}"
        )
        self.screen.say(f"  {compared.clicks_found:,} of {compared.clicks:,} clicks are in them, each in one")

    def write_once(self, log: tailrace.Log) -> Once:
        screen = self.screen
        self.heading("Once: payments are sent three times, imports run twice, and what does not fit is refused")
        found = writing.write_once(log)
        screen.say(
            f"  payments {found.payments:,}   sent {found.sent:,} times   stored {found.stored:,}   "
            f"doubled {found.doubled:,}   imports repeated {found.repeated:,}   their lines doubled "
            f"{found.imported_doubled:,}"
        )
        screen.say(f"  refused by the schema {found.refused:,} of {found.wrong:,}: {found.told}")
        return found

    def forget(self, log: tailrace.Log) -> Forgotten:
        screen = self.screen
        self.heading("Forget: carts expire, records are deleted, a customer's data is erased from every file")
        found = forgetting.forget(log)
        screen.say(
            f"  carts {found.carts:,}   still alive {found.carts_shown:,}   "
            f"on disk {found.bytes_before:,} bytes, {found.bytes_after:,} after the vacuum"
        )
        screen.say(
            f"  letters {found.letters:,}   deleted {found.deleted:,}   erased {found.erased:,} of one customer   "
            f"files that still hold a line of them {len(found.files)}"
        )
        return found

    def ask(self, log: tailrace.Log, told: dict[str, Any]) -> tuple[list[questions.Answer], list[questions.Visits]]:
        answers, visits = questions.ask(log), []
        if told:
            revenue, by_hour = questions.from_spark(told)
            answers, visits = [revenue, *answers], [by_hour, *questions.ask_visits(log)]
        self.heading(f"Ask: revenue by product, of {len(answers)} tools that read the log each for itself")
        self.tell_answers(answers)
        self.tell_visits(visits)
        return answers, visits

    def tell_answers(self, answers: Sequence[questions.Answer]) -> None:
        for answer in answers:
            best, cents = max(answer.cents.items(), key=lambda item: item[1])
            self.screen.say(
                f"  {answer.tool:<13} {sum(answer.cents.values()) / 100:14,.2f} euros, most of it {best} "
                f"({cents / 100:,.2f}), in {answer.seconds * 1_000:,.0f} ms"
            )
        equal = all(answer.cents == answers[0].cents for answer in answers)
        self.screen.say("  the same answer, to the cent" if equal else "  THE ANSWERS DIFFER")

    def tell_visits(self, visits: Sequence[questions.Visits]) -> None:
        for each in visits:
            hour, (most, clicks) = max(each.hours.items(), key=lambda item: item[1])
            self.screen.say(
                f"  {each.tool:<13} {sum(sessions for sessions, _ in each.hours.values()):14,} sessions, most of them "
                f"at {hour} o'clock ({most:,} with {clicks:,} clicks), in {each.seconds * 1_000:,.0f} ms"
            )
        if visits:
            equal = all(each.hours == visits[0].hours for each in visits)
            self.screen.say("  the same answer, hour by hour" if equal else "  THE ANSWERS DIFFER")

    def prove(self, log: tailrace.Log) -> tuple[tailrace.types.VerifyReport, damage.Proof]:
        screen = self.screen
        self.heading("Prove: verify the log, then flip one byte in a copy")
        report = log.verify(progress=lambda done, total: screen.progress(f"  {done:,} of {total:,} bytes"))
        screen.say(
            f"  verify: {report.checked_records:,} records, the catalog's included, {report.checked_bytes:,} bytes "
            f"in {report.seconds:.2f} s, {len(report.damage)} damaged ranges"
        )
        proof = damage.prove(log, self.copy)
        screen.say(f"  flipped one bit of byte {proof.position:,} of {proof.file} in the copy")
        for found in proof.report.damage:
            screen.say(f"  verify: {damage.where(found)} is damaged: {found.reason}")
        screen.say(f"  a reader is told: {proof.told or 'NOTHING'}")
        same = "each as in the log" if proof.rest_equal else "NOT AS IN THE LOG"
        screen.say(f"  the rest is read: {proof.rest_records:,} records, {same}")
        return report, proof


def main() -> int:
    options = parse_arguments()
    prepare(options.directory)
    began = monotonic()
    demo = Demo((options.directory or ROOT / "demo-data").resolve(), options.seconds, spark=options.spark)
    try:
        outcome = demo.run()
    except KeyboardInterrupt:
        demo.screen.say("interrupted; every process of the demo has ended")
        return 130
    except StreamError as error:
        demo.screen.say(f"FAILED: {error}")
        return 1
    options.page.write_text(page(outcome, demo.log_path, demo.copy), encoding="utf-8")
    close(demo.screen, outcome, options.page, monotonic() - began)
    return 1 if outcome.faults() else 0


def parse_arguments() -> argparse.Namespace:
    told = (
        "A tea shop's day on Tailrace: write, kill, work, stream, write once, forget, ask, prove. "
        "It ends by itself, with a page of pictures."
    )
    parser = argparse.ArgumentParser(prog="./demo", description=told)
    parser.add_argument("--seconds", type=float, default=35.0, help="how long to write, 3 to 3600; default: 35")
    parser.add_argument("--directory", type=Path, help="an empty directory for the log (default: demo-data, emptied)")
    parser.add_argument("--page", type=Path, default=ROOT / "demo-report.html", help="default: demo-report.html")
    parser.add_argument(
        "--no-spark", dest="spark", action="store_false", help="leave out Spark, which needs Java 17 or newer"
    )
    options = parser.parse_args()
    if not 3 <= options.seconds <= 3_600:
        parser.error("--seconds must be from 3 to 3600")
    if options.directory is not None and options.directory.exists() and any(options.directory.iterdir()):
        parser.error(f"{options.directory} is not empty, and the demo removes nothing but its own demo-data")
    return options


def prepare(directory: Path | None) -> None:
    """Remove what an earlier demo left, in the demo's own directory only."""
    if directory is None:
        shutil.rmtree(ROOT / "demo-data", ignore_errors=True)


def close(screen: Screen, outcome: Outcome, path: Path, seconds: float) -> None:
    """Print the numbers once more, in a few lines."""
    audit = outcome.audit
    append, read = spread(audit.latencies_us.get("append", [])), spread(outcome.followed.latencies_us)
    screen.heading(f"A tea shop's day in {seconds:.0f} s")
    screen.say(
        f"  acknowledged {audit.acknowledged:,}   found {audit.found:,}   lost {audit.lost:,}   "
        f"doubled {audit.doubled:,}   torn {audit.transactions_torn:,}   after {outcome.kills} kills"
    )
    screen.say(
        f"  {audit.records / outcome.seconds:,.0f} records/s over {outcome.seconds:.0f} s; one append on disk after "
        f"{append.p50:.2f} ms (p50), {append.p99:.2f} ms (p99)"
    )
    screen.say(f"  in another process {read.p50:.2f} ms after the append began (p50), {read.p99:.2f} ms (p99)")
    worked = outcome.worked
    screen.say(
        f"  {worked.invoices:,} invoices for {worked.orders:,} orders by a group that lost a member; "
        f"taken over in {worked.takeover_ms:,.0f} ms"
    )
    if outcome.streamed is not None:
        compared = outcome.streamed.comparison
        screen.say(
            f"  {compared.found:,} sessions for {compared.clicks:,} clicks by a Spark stream that was killed once: "
            f"lost {compared.lost:,}, doubled {compared.doubled:,}, wrong {compared.wrong:,}"
        )
    tools = ", ".join(answer.tool for answer in outcome.answers)
    damaged = outcome.proof.damage
    named = "not named" if damaged is None else f"named: {damage.where(damaged)}"
    screen.say(f"  asked in {tools}; {outcome.report.checked_bytes:,} bytes verified; flipped byte {named}")
    screen.say(f"  pictures: {path.resolve()}")
    for fault in outcome.faults():
        screen.say(f"FAILED: {fault}")


if __name__ == "__main__":
    sys.exit(main())
