"""`tailrace completion`: the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from tailrace.cli.grouping import command as make_command
from tailrace.cli.output import write


@make_command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    bash: eval "$(tailrace completion bash)" in ~/.bashrc; zsh the same in ~/.zshrc; fish: tailrace completion fish >
    ~/.config/fish/completions/tailrace.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    script = found(context.find_root().command, {}, "tailrace", "_TAILRACE_COMPLETE")
    # The method of the parent class: that of the bash class would run bash to ask for its version.
    write(ShellComplete.source(script).strip() + "\n")
