"""`gpusight completion`: a script that completes commands and options in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

SUMMARY = "tab completion for bash, zsh or fish"
DESCRIPTION = (
    "Print a script that completes commands, options and file names. Load it in the start-up file "
    "of your shell, as the examples show."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight completion bash > ~/.local/share/bash-completion/completions/gpusight",
    'gpusight completion zsh > "${fpath[1]}/_gpusight"',
    "gpusight completion fish > ~/.config/fish/completions/gpusight.fish",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shell", choices=tuple(_WRITERS), help="the shell to complete in")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from gpusight.cli.commands import COMMANDS
    from gpusight.cli.main import build_parser
    from gpusight.cli.output import write_out

    summaries = {name: command.SUMMARY for name, command in COMMANDS.items()}
    write_out(_WRITERS[args.shell](summaries, _options(build_parser())))
    return 0


def _options(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """List the options of each command; of one with actions, those of all its actions."""
    (commands,) = (a.choices for a in parser._actions if isinstance(a.choices, dict))
    return {name: sorted(set(_of_parser(command))) for name, command in commands.items()}


def _of_parser(parser: argparse.ArgumentParser) -> list[str]:
    words: list[str] = []
    for action in parser._actions:
        words += action.option_strings
        if isinstance(action.choices, dict):
            for name, nested in action.choices.items():
                words += [name, *_of_parser(nested)]
        elif action.choices and not action.option_strings:
            words += map(str, action.choices)
    return words


def _bash(summaries: Mapping[str, str], options: Mapping[str, Sequence[str]]) -> str:
    cases = "".join(f'    {name}) words="{" ".join(of)}" ;;\n' for name, of in options.items())
    return f"""\
# bash completion of gpusight; made by `gpusight completion bash`
_gpusight() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    words="{" ".join(summaries)} help --help --version"
  else
    case "${{COMP_WORDS[1]}}" in
    help) words="{" ".join(summaries)}" ;;
{cases}    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word"; compgen -f -- "$word")
}}
complete -o filenames -F _gpusight gpusight
"""


def _zsh(summaries: Mapping[str, str], options: Mapping[str, Sequence[str]]) -> str:
    described = "\n".join(f"    {_quote(f'{n}:{s}')}" for n, s in summaries.items())
    cases = "".join(f"    {name}) compadd -- {' '.join(of)} ;;\n" for name, of in options.items())
    return f"""\
#compdef gpusight
# zsh completion of gpusight; made by `gpusight completion zsh`
_gpusight() {{
  local -a commands=(
{described}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    _files
  elif [[ $words[2] == help ]]; then
    _describe command commands
  else
    case $words[2] in
{cases}    esac
    _files
  fi
}}
if [[ $funcstack[1] == _gpusight ]]; then _gpusight "$@"; else compdef _gpusight gpusight; fi
"""


def _fish(summaries: Mapping[str, str], options: Mapping[str, Sequence[str]]) -> str:
    lines = ["# fish completion of gpusight; made by `gpusight completion fish`"]
    for name, summary in summaries.items():
        first = "complete -c gpusight -n __fish_use_subcommand"
        lines.append(f"{first} -a {name} -d {_quote(summary)}")
        condition = _quote(f"__fish_seen_subcommand_from {name}")
        for option in options[name]:
            word = option.lstrip("-")
            kind = "-l" if option.startswith("--") else "-s" if option.startswith("-") else "-a"
            lines.append(f"complete -c gpusight -n {condition} {kind} {word}")
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    escaped = text.replace("'", "'\\''")
    return f"'{escaped}'"


_WRITERS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
