"""Risky shell commands: a table of program names, each with the question that makes its use risky."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ceb_gym.critics.shell_commands import Redirect, SimpleCommand, flags, operands, read_commands

MAX_WRAPPERS = 8  # such as `sudo env nice`, in front of one command
MAX_SCRIPT_DEPTH = 3  # of scripts inside scripts, such as `bash -c "bash -c ..."`

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[\w*\])?\+?=")
_NO_CLOBBER = re.compile(r"-[finuv]*n[finuv]*$|--no-clobber$")
_RESERVED = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{", "time", "coproc"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
_EXEC = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

# programs that run another: their one-letter options with a value, and how many operands come before it
_WRAPPERS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "sudo": ("ugphCDRTrtU", 0),
        "doas": ("uC", 0),
        "env": ("uCS", 0),
        "nohup": ("", 0),
        "nice": ("n", 0),
        "ionice": ("cn", 0),
        "timeout": ("ks", 1),
        "exec": ("a", 0),
        "command": ("", 0),
        "builtin": ("", 0),
        "busybox": ("", 0),
        "xargs": ("InPLdasE", 0),
        "parallel": ("jI", 0),
        "stdbuf": ("ioe", 0),
        "setsid": ("", 0),
        "chroot": ("", 1),
        "flock": ("w", 1),
    }
)


class RunCommand(NamedTuple):
    """A program that would run.

    Attributes:
        name: Without its folder.
        arguments: Options and operands.
        piped: Whether its input comes from a command before it.
    """

    name: str
    arguments: tuple[str, ...]
    redirects: tuple[Redirect, ...]
    piped: bool


def run_commands(script: str, depth: int = 0) -> list[RunCommand]:
    """Returns all programs that a script would run, those behind `sudo`, `xargs` or `bash -c` too."""
    found: list[RunCommand] = []
    for command in read_commands(script):
        _unwrap(command, depth, found)
    return found


def _unwrap(command: SimpleCommand, depth: int, found: list[RunCommand]) -> None:
    words, start = command.words, 0
    redirects, piped = command.redirects, command.piped
    for _ in range(MAX_WRAPPERS):
        while start < len(words) and (words[start] in _RESERVED or _ASSIGNMENT.match(words[start])):
            start += 1
        name = words[start].rpartition("/")[2] if start < len(words) else ""
        run = RunCommand(name, words[start + 1 :], redirects, piped)
        found.append(run)
        if name not in _WRAPPERS or (name == "command" and {"v", "V"} & set(flags(run.arguments[:1]))):
            break
        start, redirects = _behind(words, start, *_WRAPPERS[name]), ()
    if depth == MAX_SCRIPT_DEPTH:
        return
    for script in _scripts(run):
        found.extend(run_commands(script, depth + 1))
    if run.name == "find":
        for inner in _exec_commands(run.arguments):
            _unwrap(SimpleCommand(inner), depth + 1, found)


def _behind(words: Sequence[str], start: int, with_value: str, operands_first: int) -> int:
    """Where the wrapped command begins."""
    place = start + 1
    while place < len(words) and words[place].startswith("-"):
        takes_next = len(words[place]) == 2 and words[place][1] in with_value and with_value != ""
        place += 2 if takes_next else 1
    return place + operands_first


def _scripts(run: RunCommand) -> list[str]:
    """Scripts that a command gets as text."""
    if run.name == "eval":
        return [" ".join(run.arguments)]
    if run.name not in _SHELLS | {"su"}:
        return []
    scripts = [redirect.target for redirect in run.redirects if redirect.operator in ("<<", "<<<")]
    for place, word in enumerate(run.arguments[:-1]):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c"):
            return [*scripts, run.arguments[place + 1]]
    return scripts


def _exec_commands(arguments: Sequence[str]) -> list[tuple[str, ...]]:
    commands: list[tuple[str, ...]] = []
    start: int | None = None
    for place, word in enumerate(arguments):
        if start is not None and word in (";", "+"):
            commands.append(tuple(arguments[start:place]))
            start = None
        elif start is None and word in _EXEC:
            start = place + 1
    if start is not None:
        commands.append(tuple(arguments[start:]))
    return commands


Question = Callable[[RunCommand], bool]
Risks = Mapping[str, Question]


def _always(run: RunCommand) -> bool:
    return True


def _with_flag(*wanted: str) -> Question:
    return lambda run: not set(wanted).isdisjoint(flags(run.arguments))


def _without_flag(*harmless: str) -> Question:
    return lambda run: set(harmless).isdisjoint(flags(run.arguments))


def _with_word(*wanted: str) -> Question:
    """Whether one of the first operands, such as the subcommand of `apt-get -y remove`, is among these."""
    return lambda run: not set(wanted).isdisjoint(operands(run.arguments)[:2])


def _git(*subcommands: str, flag: tuple[str, ...] = (), word: str | None = None) -> Question:
    def asked(run: RunCommand) -> bool:
        words = operands(run.arguments)
        if not set(subcommands) & set(words[:2]):
            return False
        return (not flag and word is None) or _with_flag(*flag)(run) or (word is not None and word in words)

    return asked


def _any_of(*questions: Question) -> Question:
    return lambda run: any(question(run) for question in questions)


def _each(names: str, question: Question = _always) -> dict[str, Question]:
    return dict.fromkeys(names.split(), question)


def _writes_to(prefix: str) -> Question:
    harmless = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty")
    return lambda run: any(
        word.startswith(prefix) and word.removeprefix(prefix) not in harmless for word in run.arguments
    )


def _tee(run: RunCommand) -> bool:
    files = [word for word in operands(run.arguments) if not word.startswith("/dev/")]
    return bool(files) and _without_flag("a", "--append")(run)


def _chmod(run: RunCommand) -> bool:
    if _with_flag("R", "--recursive")(run):
        return True
    mode = next(iter(operands(run.arguments)), "")
    if mode.isdecimal():  # others may write, or the program gets its owner's rights
        return mode[-1] in "2367" or (len(mode) == 4 and mode[0] in "24567")
    return bool(re.search(r"(^|[ao,])\+[rx]*[sw]|u\+[rwx]*s", mode[:40])) and not mode.startswith("+w")


def _remote(run: RunCommand) -> bool:
    return any(":" in word.partition("/")[0] for word in operands(run.arguments))


def _force_push(run: RunCommand) -> bool:
    words = operands(run.arguments)
    plus = any(word.startswith("+") for word in words)
    return "push" in words[:2] and (plus or _with_flag("f", "--force", "--force-with-lease", "--delete")(run))


def _python_module(module: str, *wanted: str) -> Question:
    return lambda run: run.arguments[:2] == ("-m", module) and not set(wanted).isdisjoint(run.arguments[2:4])


_REMOVAL = _with_word("remove", "purge", "autoremove", "uninstall", "erase", "del", "rm")
_INSTALL = _with_word("install", "add", "update", "upgrade", "dist-upgrade", "download", "ci")
_MANAGERS = (
    "apt apt-get aptitude dnf yum apk zypper brew snap flatpak conda mamba pip pip3 pipx npm yarn pnpm gem"
)

DELETE: Risks = {
    **_each("rm rmdir unlink shred srm wipefs userdel groupdel deluser dropdb trash trash-put"),
    "find": lambda run: "-delete" in run.arguments,
    "crontab": _with_flag("r"),
    "git": _any_of(_git("rm", "clean"), _git("branch", "tag", flag=("D", "d", "--delete"))),
    "rsync": lambda run: any(word.startswith(("--delete", "--remove-source")) for word in run.arguments),
    "tar": _with_flag("--remove-files"),
    "docker": _with_word("rm", "rmi", "prune"),
    "kubectl": _with_word("delete"),
    "gio": _with_word("trash", "remove"),
}
OVERWRITE: Risks = {
    "mv": lambda run: not any(_NO_CLOBBER.match(word) for word in run.arguments),
    **_each("cp ln", _with_flag("f", "--force")),
    **_each("truncate fdisk sfdisk parted mkswap sponge"),
    "dd": _writes_to("of="),
    "tee": _tee,
    "sed": lambda run: any(
        word.startswith("--in-place") or re.match(r"-[nErsuz]*i", word) for word in run.arguments
    ),
    "perl": lambda run: any(re.match(r"-[pnlaw0]*i", word) for word in run.arguments),
    "sort": _with_flag("o", "--output"),
    "unzip": _with_flag("o"),
    "crontab": lambda run: bool(operands(run.arguments)) and _without_flag("l", "r")(run),
    "git": _any_of(
        _force_push,
        _git("reset", flag=("--hard",)),
        _git("restore"),
        _git("checkout", flag=("f", "--force"), word="."),
        lambda run: "checkout" in run.arguments[:2] and "--" in run.arguments,
    ),
}
PRIVILEGE: Risks = {
    **_each("sudo su doas pkexec runuser chown chgrp chroot setfacl setcap visudo passwd chpasswd usermod"),
    **_each("useradd adduser groupadd umount insmod modprobe"),
    "mount": lambda run: bool(run.arguments),  # without any it lists
    "chmod": _chmod,
}
NETWORK: Risks = {
    **_each("curl wget ssh sftp ftp nc ncat netcat telnet socat aria2c ssh-copy-id"),
    **_each("scp", _remote),
    "rsync": _remote,
    "git": _git("clone", "fetch", "pull", "push"),
    **_each(_MANAGERS, _INSTALL),
    **_each("python python3", _python_module("pip", "install", "download")),
}
UNINSTALL: Risks = {
    **_each(_MANAGERS, _REMOVAL),
    "cargo": _with_word("uninstall"),
    "pacman": lambda run: any(word.startswith("-R") or word == "--remove" for word in run.arguments),
    "dpkg": _with_flag("r", "P", "--remove", "--purge"),
    "rpm": _with_flag("e", "--erase"),
    **_each("python python3", _python_module("pip", "uninstall")),
}
SEND: Risks = {
    **_each("mail mailx sendmail mutt msmtp wall write"),
    "git": _git("push"),
    **_each("npm cargo poetry", _with_word("publish")),
    "twine": _with_word("upload"),
    "docker": _with_word("push"),
}
STOP: Risks = {
    **_each("shutdown reboot halt poweroff pkill killall xkill"),
    "kill": lambda run: run.arguments[:1] not in (("-0",), ("-l",), ("-L",)),
    **_each("init telinit", _with_word("0", "6")),
    "systemctl": _with_word("stop", "disable", "mask", "kill", "poweroff", "reboot", "halt", "isolate"),
    "service": _with_word("stop"),
}


def overwrites_by_redirection(run: RunCommand) -> bool:
    """Whether output replaces a file: `> file`, not `>> file`, `2>&1` or `> /dev/null`."""
    return any(
        redirect.operator in (">", ">|", "&>", "<>")
        or (redirect.operator == ">&" and not redirect.target.rstrip("-").isdecimal())
        for redirect in run.redirects
        if redirect.target not in ("", "-", "/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty")
        and not redirect.target.startswith(("/dev/fd/", "/dev/tcp/", "/dev/udp/"))
    )


def formats_a_disk(run: RunCommand) -> bool:
    """`mkfs` and `mkfs.ext4`."""
    return run.name.partition(".")[0] == "mkfs"


def talks_by_redirection(run: RunCommand) -> bool:
    """Bash's own sockets, `/dev/tcp/host/port`."""
    return any(redirect.target.startswith(("/dev/tcp/", "/dev/udp/")) for redirect in run.redirects)


def runs_its_input(run: RunCommand) -> bool:
    """A shell that runs whatever comes through a pipe, as in `curl ... | sh`."""
    return run.name in _SHELLS and run.piped and not set(operands(run.arguments)) - {"-"}


_NOTABLE = frozenset(
    name for table in (DELETE, OVERWRITE, PRIVILEGE, NETWORK, UNINSTALL, SEND, STOP) for name in table
)


def is_notable(run: RunCommand) -> bool:
    """Whether any built-in rule needs to look at this command at all."""
    name = run.name
    return bool(run.redirects) or run.piped or name in _NOTABLE or name.startswith("mkfs")
