"""`gpusight completion`: a script that completes commands and options in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli.output import write_out

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

SUMMARY = "tab completion for bash, zsh or fish"
DESCRIPTION = (
    "Print a script that completes commands, options, their values and file names. Load it in the "
    "start-up file of your shell, as the examples show."
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

    summaries = {name: command.SUMMARY for name, command in COMMANDS.items()}
    write_out(_WRITERS[args.shell](summaries, _commands(build_parser())))
    return 0


class _Words:
    """What can follow a command: its options and actions, and the values of options."""

    def __init__(self) -> None:
        self.flags: set[str] = set()
        self.values: dict[str, tuple[str, ...]] = {}
        """By option that takes one; without known values, a file or a text."""
        self.actions: set[str] = set()

    @property
    def every(self) -> list[str]:
        """All words but the values of options."""
        return sorted(self.flags | set(self.values) | self.actions)


def _commands(parser: argparse.ArgumentParser) -> dict[str, _Words]:
    """List the words of each command; of one with actions, those of all its actions."""
    from gpusight.rules.registry import KERNEL_RULES, TIMELINE_RULES

    (commands,) = (a.choices for a in parser._actions if isinstance(a.choices, dict))
    rules = tuple(sorted({*TIMELINE_RULES, *KERNEL_RULES}))
    known = {name: _Words() for name in commands}
    for name, command in commands.items():
        _add_words(known[name], command, rules)
    known["explain"].actions.update(rules)
    return known


def _add_words(words: _Words, parser: argparse.ArgumentParser, rules: tuple[str, ...]) -> None:
    for action in parser._actions:
        choices = tuple(map(str, action.choices or ()))
        if action.option_strings and action.nargs == 0:
            words.flags.update(action.option_strings)
        elif action.option_strings:
            known = choices if _RULE_OPTIONS.isdisjoint(action.option_strings) else rules
            words.values.update(dict.fromkeys(action.option_strings, known))
        else:
            words.actions.update(choices)
        if isinstance(action.choices, dict):
            for nested in action.choices.values():
                _add_words(words, nested, rules)


_RULE_OPTIONS = {"--rule", "--apply"}
"""Options that take names of rules."""


def _bash(summaries: Mapping[str, str], commands: Mapping[str, _Words]) -> str:
    cases = ""
    for name, words in commands.items():
        for option, values in words.values.items():
            files = "" if values else " files=1"
            cases += f'    "{name} {option}") words="{" ".join(values)}"{files} ;;\n'
        cases += f'    "{name} "*) words="{" ".join(words.every)}" files=1 ;;\n'
    return f"""\
# bash completion of gpusight; made by `gpusight completion bash`
_gpusight() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words files last=$((COMP_CWORD - 1))
  [[ $word == = ]] && word=
  [[ ${{COMP_WORDS[last]}} == = ]] && last=$((last - 1))
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    words="{" ".join(summaries)} help --help --version" files=1
  else
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[last]}}" in
    "help "*) words="{" ".join(summaries)}" ;;
{cases}    esac
  fi
  mapfile -t COMPREPLY < <(
    compgen -W "$words" -- "$word"
    [[ -n $files ]] && compgen -f -- "$word"
  )
}}
complete -o filenames -F _gpusight gpusight
"""


def _zsh(summaries: Mapping[str, str], commands: Mapping[str, _Words]) -> str:
    described = "\n".join(f"    {_quote(f'{n}:{s}')}" for n, s in summaries.items())
    cases = ""
    for name, words in commands.items():
        for option, values in words.values.items():
            add = f"compadd -- {' '.join(values)}" if values else "_files"
            cases += f'    "{name} {option}") {add}; return ;;\n'
        cases += f'    "{name} "*) compadd -- {" ".join(words.every)} ;;\n'
    return f"""\
#compdef gpusight
# zsh completion of gpusight; made by `gpusight completion zsh`
_gpusight() {{
  local last=$words[CURRENT-1]
  local -a commands=(
{described}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    _files
  elif [[ $words[2] == help ]]; then
    compadd -- {" ".join(summaries)}
  else
    if [[ $words[CURRENT] == --*=* ]]; then
      last=${{words[CURRENT]%%=*}}
      compset -P '*='
    fi
    case "$words[2] $last" in
{cases}    esac
    _files
  fi
}}
if [[ $funcstack[1] == _gpusight ]]; then _gpusight "$@"; else compdef _gpusight gpusight; fi
"""


def _fish(summaries: Mapping[str, str], commands: Mapping[str, _Words]) -> str:
    lines = ["# fish completion of gpusight; made by `gpusight completion fish`"]
    for name, summary in summaries.items():
        first = "complete -c gpusight -n __fish_use_subcommand"
        lines.append(f"{first} -a {name} -d {_quote(summary)}")
        words, seen = commands[name], _quote(f"__fish_seen_subcommand_from {name}")
        for word in words.every:
            kind = "-l" if word.startswith("--") else "-s" if word.startswith("-") else "-a"
            line = f"complete -c gpusight -n {seen} {kind} {word.lstrip('-')}"
            if word in words.values:
                values = words.values[word]
                line += f" -x -a {_quote(' '.join(values))}" if values else " -r"
            lines.append(line)
    names = " ".join(summaries)
    lines.append(
        f"complete -c gpusight -n '__fish_seen_subcommand_from help' -x -a {_quote(names)}"
    )
    lines.append("complete -c gpusight -n __fish_use_subcommand -a help -d 'help on a command'")
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    escaped = text.replace("'", "'\\''")
    return f"'{escaped}'"


_WRITERS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
