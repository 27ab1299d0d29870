"""One decoder and one input: what it may raise, how long it may take, how much memory."""

from __future__ import annotations

import signal
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.rigs.fuzz.mutating import Edit, apply, apply_json, edits, json_edits
from tests.rigs.fuzz.target import TAKEN_BYTES_MAX, TAKEN_TIMES_MAX, Target
from tests.rigs.fuzz.targets import nested

# Far above what the slowest takes: a loop that does not end, or ends after a length that was claimed, is above it.
SECONDS_MAX = 5.0


class Hang(BaseException):
    """Decoding took too long: not an Exception, so that nothing takes it for an error it can deal with."""


class Greedy(AssertionError):  # noqa: N818  # the word says it
    """Decoding took more memory than its input can be worth."""


@dataclass
class Fuzzed:
    """How many inputs each decoder was given, and how many it took for valid."""

    examples: Counter[str] = field(default_factory=Counter)
    decoded: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    most_bytes: int = 0
    longest: float = 0.0

    def text(self) -> str:
        return (
            f"decoders {len(self.examples)} · inputs {self.examples.total():,} (decoded {self.decoded.total():,}, "
            f"refused with a typed error {self.refused.total():,}) · longest {self.longest:.3f} s · most memory "
            f"{self.most_bytes / 1e6:.1f} MB"
        )


@contextmanager
def in_time() -> Iterator[None]:
    """Raise Hang in the main thread when something takes far too long."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def decode(target: Target, data: bytes, fuzzed: Fuzzed) -> None:
    """Decode one input; whatever is raised here and is not the decoder's promise is a bug."""
    fuzzed.examples[target.name] += 1
    tracemalloc.start()
    began = time.perf_counter()
    found: object = None
    try:
        with in_time():
            found = target.decode(data)
    except target.raises:
        fuzzed.refused[target.name] += 1
    finally:
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    fuzzed.longest = max(fuzzed.longest, time.perf_counter() - began)
    fuzzed.most_bytes = max(fuzzed.most_bytes, taken)
    fuzzed.decoded[target.name] += found is not None
    if taken > TAKEN_BYTES_MAX + TAKEN_TIMES_MAX * len(data) + target.claim(data):
        raise Greedy(f"{taken:,} bytes were taken to decode {len(data):,}")


def fuzz(target: Target, examples: int, fuzzed: Fuzzed, number: int) -> None:
    """So many inputs for one decoder; the first that breaks a promise is shrunk by Hypothesis and raised."""
    seeds = list(target.seeds())

    @seed(number)
    @settings(
        max_examples=examples, deadline=None, database=None, print_blob=True,
        phases=(Phase.explicit, Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.integers(0, len(seeds) - 1), edits(), st.sampled_from((True, True, True, False)))
    def mutated(which: int, changes: list[Edit], right: bool) -> None:
        data = apply(seeds[which], changes, target.focus(seeds[which]))
        decode(target, target.fix(data) if right else data, fuzzed)

    @seed(number)
    @settings(parent=settings(max_examples=max(1, examples // 8), database=None, deadline=None))
    @given(st.binary(max_size=600), st.booleans())
    def arbitrary(data: bytes, right: bool) -> None:
        decode(target, target.fix(data) if right else data, fuzzed)

    @seed(number)
    @settings(
        max_examples=examples, deadline=None, database=None, print_blob=True,
        phases=(Phase.explicit, Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.integers(0, len(seeds) - 1), json_edits())
    def documents(which: int, changes: list[tuple[int, int]]) -> None:
        decode(target, apply_json(seeds[which], changes), fuzzed)

    for data in [*seeds, *(nested(seeds[0]) if target.json else ())]:
        decode(target, data, fuzzed)
    if target.json:
        documents()
    mutated()
    arbitrary()
