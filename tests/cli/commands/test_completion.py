"""completion: the script of each shell, and what it offers."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(cli, shell):
    assert f"_TAILRACE_COMPLETE={shell}_complete" in cli.ok("completion", shell)
    assert cli("completion", "tcsh").exit_code == 2
    assert "Choose from: bash, zsh, fish" in cli("completion").stderr


def test_completion_knows_commands_options_and_topics(shop, monkeypatch):
    shop.ok("append", "orders", "x", "-N", "tenant")

    def complete(*words: str) -> list[str]:
        for name, value in (("COMP_WORDS", " ".join(words)), ("COMP_CWORD", str(len(words) - 1))):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("_TAILRACE_COMPLETE", "bash_complete")
        done = shop.finish()
        assert done.stderr == b""
        return [line.split(",")[-1] for line in done.stdout.decode().split()]

    assert complete("tailrace", "to") == ["topic"]
    assert complete("tailrace", "topic", "tr") == ["trim"]
    assert "--grep" in complete("tailrace", "read", "--g")
    assert complete("tailrace", "read", "ord") == ["orders"]
    assert complete("tailrace", "-L", "/nowhere", "read", "ord") == []
    assert complete("tailrace", "read", "-N", "t") == ["tenant"]
    assert complete("tailrace", "namespace", "drop", "t") == ["tenant"]
    assert complete("tailrace", "verify", "ord") == ["orders"]
    assert complete("tailrace", "read", "-o", "a") == ["auto", "arrow"]
    assert complete("tailrace", "topic", "ls", "-o", "a") == ["auto"]
    assert complete("tailrace", "read", "-o", "p") == []
    monkeypatch.setenv("COMP_CWORD", "2")
    for words, kind in (
        ("tailrace -L x", b"dir,x"),
        ("tailrace import x", b"file,x"),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        assert shop.finish().stdout.strip() == kind
    monkeypatch.setenv("COMP_WORDS", "tailrace append t -i x")
    monkeypatch.setenv("COMP_CWORD", "4")
    assert shop.finish().stdout.strip() == b"file,x"
