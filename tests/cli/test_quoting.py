"""Text that may hold anything, on a terminal and as a word of a shell."""

from __future__ import annotations

import os
import subprocess

import pytest

from tailrace.cli.quoting import printable, quote


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("caf\u00e9 \u8336", "caf\u00e9 \u8336"),
        (b"\x1b[31mred", "\\x1b[31mred"),
        (b"a\r\n\tb", "a\\r\\n\\tb"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("\u061cx", "\\u061cx"),
        ("\udcff", "\\udcff"),
        (None, ""),
    ],
)
def test_nothing_that_steers_a_terminal_gets_through(data, text):
    assert printable(data) == text


def test_every_control_is_escaped():
    every = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
    assert printable(every).isprintable()


@pytest.mark.parametrize(
    "text", ["plain", "two words", "it's", "a\nb", "tab\t'q\\", "\x1b[2J", os.fsdecode(b"\xff"), ""]
)
def test_a_quoted_word_is_read_back_by_a_shell(text):
    done = subprocess.run(["bash", "-c", f"printf %s {quote(text)}"], capture_output=True, check=True)
    assert done.stdout == os.fsencode(text)
    assert quote(text).isprintable()


def test_a_plain_word_stays_as_it_is():
    assert quote("orders.eu-1") == "orders.eu-1"
    assert quote("a\nb") == "$'a\\nb'"
