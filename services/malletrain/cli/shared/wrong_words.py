"""What is said of options and verbs that there are not. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from malletrain.caller.other_names import own_options, own_verb, why_absent, why_no_verb

_RUNNING = ("submit", "check")
"""Verbs that are given a command."""
_FOR_JOBS = {"u": "--owner or --mine", "user": "--owner or --mine", "me": "--mine", "t": "--state", "states": "--state"}


def of_option(verb: str, option: str, words: Sequence[str], others: Sequence[str]) -> str:
    """What is said of an option that a verb does not have; empty: nothing more than that.

    Args:
        option: The option, with its dashes.
        words: All words after the verb.
        others: What is left of them without the verb's own options: of the script, and this option.
    """
    name = option.lstrip("-")
    if verb in _RUNNING:
        place = next((place for place, word in enumerate(others) if word.startswith(option)), 0)
        if place and "--" not in words:
            if others[0].endswith(".toml"):
                return "options of the script stand in the job file's command"
            start = list(words).index(others[0])
            line = shlex.join([*words[:start], "--", *words[start:]])
            return f"options of the script stand after `--`: malletrain {verb} {line}"
        if absent := why_absent(name):
            return absent
        meant = " and ".join(f"--{own}" for own in own_options(name))
    else:
        meant = _FOR_JOBS.get(name, "") if verb == "jobs" else ""
    return meant and f"here it is {meant}"


def of_verb(word: str, verbs: Sequence[str]) -> str:
    """What is said of a verb that there is not."""
    if absent := why_no_verb(word):
        return absent
    meant = own_verb(word, verbs)
    return f"do you mean `malletrain {meant}`?" if meant else "`malletrain --help` lists all"
