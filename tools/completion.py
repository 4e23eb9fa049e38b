"""Completion of our programs in bash, zsh and fish: scripts that ask the program itself."""

from __future__ import annotations

from typer._completion_shared import get_completion_script

PROGRAMS = ("bruce", "brucectl")


def completions(program: str) -> dict[str, str]:
    """By file name, in the form that each shell looks for, the script that completes a program."""
    names = {"bash": f"{program}.bash", "zsh": f"_{program}", "fish": f"{program}.fish"}
    return {name: _script(program, shell) for shell, name in names.items()}


def _script(program: str, shell: str) -> str:
    variable = f"_{program.upper()}_COMPLETE"
    script = get_completion_script(prog_name=program, complete_var=variable, shell=shell)
    # zsh runs the file as the function of the first completion, which would then complete nothing.
    return f'{script}\n_{program}_completion "$@"\n' if shell == "zsh" else f"{script}\n"
