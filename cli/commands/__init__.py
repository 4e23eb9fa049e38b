"""The commands: one function each, which parses its arguments, calls, shows the result and exits.

A module has one command, or a few that share most of what they do; `arguments` has what several commands
share; `config` also translates the configuration of Bruce 1.0 or Dory. The commands of `brucectl
inspect` and `brucectl spark` have folders of their own. The docstring of a command is its help, and its page
in the manual; NAME_EXAMPLES ends both.

`cli.app` names each command, and `cli.terminal.program` imports its module when the command runs. Nothing
else imports this folder. It may import everything in cli, in its functions.

    "top": command("status", "top", "TOP_EXAMPLES"),  # in cli.app
"""
