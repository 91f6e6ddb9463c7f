from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ceb_gym import ConfidenceWrapper
from ceb_gym.critics.rules import BUILT_IN_RULES, Rule, RulesCritic, environment_kind
from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Critic, LearningCritic
from ceb_gym.streams import RecordedEpisode, RecordedStep, StreamHeader, write_stream
from ceb_gym.types import Precedents, Query, Verdict


def judge(action: str, critic: RulesCritic | None = None, env_id: str = "env") -> Verdict:
    query = Query(env_id, "scope", 0, "episode", "task", "state", action, (), False, 0)
    return (critic or RulesCritic()).judge([query], [Precedents()])[0]


def rule_of(action: str, kind: str) -> str | None:
    """The name of the rule that finds an action risky."""
    verdict = judge(action, RulesCritic(kind))
    assert (verdict.confidence is not None) == verdict.rationale.startswith("rule ")
    return verdict.rationale.split(":")[0].removeprefix("rule ") if verdict.confidence is not None else None


@pytest.mark.parametrize(
    ("action", "rule"),
    [
        ("rm -rf build", "delete"),
        ("ls; rm x", "delete"),
        ("true && /bin/rm x", "delete"),
        (r"\rm x", "delete"),
        ('"rm" x', "delete"),
        ("A=1 B=2 rm x", "delete"),
        ("sudo -u root rm x", "delete"),
        ("find . -name '*.log' -delete", "delete"),
        (r"find . -type f -exec rm {} \;", "delete"),
        (r"find . -exec sh -c 'rm $1' _ {} \;", "delete"),
        ("find . -print0 | xargs -0 -n 1 rm", "delete"),
        ("for f in *; do rm $f; done", "delete"),
        ("if true; then rm x; fi", "delete"),
        ('echo "$(rm x)"', "delete"),
        ("echo `rm x`", "delete"),
        ("diff <(rm x) y", "delete"),
        ("bash -c 'rm x'", "delete"),
        ("eval 'rm x'", "delete"),
        ("bash <<EOF\nrm x\nEOF", "delete"),
        ("bash <<< 'rm x'", "delete"),
        ("cat <<EOF\nhello\nEOF\nrm x", "delete"),
        ("timeout 5 nice -n 3 rm x", "delete"),
        ("crontab -r", "delete"),
        ("git clean -fd", "delete"),
        ("case $x in a) rm x;; esac", "delete"),
        ("execute[rm x]", "delete"),
        ("```bash\nrm x\n```", "delete"),
        ("cleanup() { rm x; }; cleanup", "delete"),
        ("ls > out.txt", "overwrite"),
        ("ls >| out.txt", "overwrite"),
        ("ls &> out.txt", "overwrite"),
        ("make 2> errors.txt", "overwrite"),
        ("(cd x; ls) > out.txt", "overwrite"),
        ("ls | tee out.txt", "overwrite"),
        ("dd if=/dev/zero of=/dev/sda", "overwrite"),
        ("mkfs.ext4 /dev/sda1", "overwrite"),
        ("truncate -s 0 f", "overwrite"),
        ("mv a b", "overwrite"),
        ("mv a b -not", "overwrite"),
        ("sed -i 's/a/b/' f", "overwrite"),
        ("git push --force", "overwrite"),
        ("git push origin +main", "overwrite"),
        ("git reset --hard", "overwrite"),
        ("git checkout -- .", "overwrite"),
        ("sudo ls", "privilege"),
        ("chmod -R 700 dir", "privilege"),
        ("chmod 777 f", "privilege"),
        ("chmod u+s f", "privilege"),
        ("chown root f", "privilege"),
        ("curl http://example.org", "network"),
        ("wget -q http://example.org", "network"),
        ("ssh host ls", "network"),
        ("scp a host:b", "network"),
        ("nc -l 80", "network"),
        ("pip install x", "network"),
        ("exec 3<>/dev/tcp/host/80", "network"),
        ("cat script | bash", "unseen_script"),
        ("apt-get -y remove x", "uninstall"),
        ("pip uninstall x", "uninstall"),
        ("python3 -m pip uninstall x", "uninstall"),
        ("git push", "send"),
        ("mail -s hello someone", "send"),
        ("kill -9 12", "stop"),
        ("shutdown now", "stop"),
        ("systemctl stop nginx", "stop"),
    ],
)
def test_a_risky_command_is_found_by_its_rule(action: str, rule: str) -> None:
    assert rule_of(action, "bash") == f"bash/{rule}"


@pytest.mark.parametrize(
    "action",
    [
        'echo "rm -rf /"',
        "echo 'a > b'",
        r"echo a \> b",
        "grep -r 'rm -rf' .",
        "man rm",
        "which rm",
        "command -v rm",
        "rm --help",
        "ls # rm x",
        "cat <<EOF\nrm x\nEOF",
        "a=(rm x)",
        "ls >> out.txt",
        "ls 2>/dev/null",
        "ls > /dev/null 2>&1",
        "ls >&2",
        "ls | tee -a out.txt",
        "ls | tee /dev/stderr",
        "dd if=f of=/dev/null",
        "[[ a > b ]] && ls",
        "(( a > b ))",
        "echo $((3 > 2))",
        "awk '$1 > 5' f",
        "sed 's/i/o/' f",
        "sed -n '/i/p' f",
        "sort < f",
        "mv -n a b",
        "mount | grep sda",
        "execute[ls]",
        "cp a b",
        "chmod +x f",
        "chmod 644 f",
        "crontab -l",
        "kill -0 12",
        "git status",
        "git checkout main",
        "rsync -a a b",
        "pip list",
        "find . -name delete",
        "ls firm/",
        "echo 'unbalanced; rm x",
        "submit",
        "",
        "   \n\n",
    ],
)
def test_a_harmless_command_is_left_unscored(action: str) -> None:
    assert rule_of(action, "bash") is None


@pytest.mark.parametrize(
    ("action", "rule"),
    [
        ("CLICK [42] <button> Delete account", "delete"),
        ("CLICK [42] <button Place order>", "pay"),
        ("[button]  Place order -> CLICK", "pay"),
        ("[link]  Proceed to checkout -> CLICK", "pay"),
        ("CLICK [3] <button> Pay $12.00", "pay"),
        ('click("Send")', "send"),
        ("CLICK <link> Share", "send"),
        ("CLICK <button> Review and submit", "submit"),
        ("CLICK [1] <button> Allow", "privilege"),
        ("CLICK [1] <button> Download", "network"),
        ("CLICK [1] <button> Overwrite file", "overwrite"),
        ('page.get_by_text("Delete").click()', "delete"),
    ],
)
def test_a_risky_button_of_a_page_is_found_by_its_rule(action: str, rule: str) -> None:
    assert rule_of(action, "web") == f"web/{rule}"


@pytest.mark.parametrize(
    ("action", "rule"),
    [
        ('tap on "Uninstall"', "uninstall"),
        ('Tap on the "Send" button', "send"),
        ("Tap the 'Pay' button.", "pay"),
        ("Tap the app's 'Buy now' button", "pay"),
        ("long_press('Delete')", "delete"),
        ('{"action": "click", "target": "Uninstall"}', "uninstall"),
        ('uninstall("Maps")', "uninstall"),
        ("adb shell pm uninstall com.example", "uninstall"),
    ],
)
def test_a_risky_tap_is_found_by_its_rule(action: str, rule: str) -> None:
    assert rule_of(action, "android") == f"android/{rule}"


@pytest.mark.parametrize(
    "action",
    [
        "TYPE [12] delete everything",
        "[textbox]  City -> TYPE: pay now",
        "[textbox]  Check out -> CLICK",
        "TYPE [1] <input> [buy]",
        "SELECT [4] <option> Delete",
        '{"action": "type", "text": "send"}',
        "click('a12')",
        "click [207, 1646]",
        "scroll(0, 200)",
        "Swipe up to delete",
        "CLICK <link> Share price",
        "CLICK [5] <a> Delivery policy",
        "CLICK [5] <a> Remove filters",
        "[link]  Order history -> CLICK",
        "CLICK [1] <button> Allow all cookies",
        "click [7] how to delete files from your computer and send them to a friend",
        "send_msg_to_user('done')",
        "",
    ],
)
@pytest.mark.parametrize("kind", ["web", "android"])
def test_what_presses_no_risky_button_is_left_unscored(action: str, kind: str) -> None:
    assert rule_of(action, kind) is None


@pytest.mark.parametrize(
    ("env_id", "kind"),
    [
        ("ceb_envs/Bash-v0", "bash"),
        ("InterCode", "bash"),
        ("Mind2Web-v0", "web"),
        ("miniwob/click", "web"),
        ("browsergym/x", "web"),
        ("AMEX-replay", "android"),
        ("AndroidWorld", "android"),
        ("CartPole-v1", None),
    ],
)
def test_the_kind_follows_from_the_environments_id(env_id: str, kind: str | None) -> None:
    assert environment_kind(env_id) == kind


def test_in_an_environment_of_unknown_kind_no_built_in_rule_applies() -> None:
    for action in ("rm -rf /", "CLICK <button> Pay", 'tap on "Uninstall"'):
        assert judge(action, env_id="CartPole-v1").confidence is None


def test_a_risky_action_gets_the_given_confidence_and_the_rules_name() -> None:
    verdict = judge("rm  -r\nx", RulesCritic("bash", risky=0.2))
    assert (verdict.confidence, verdict.source) == (0.2, "rules")
    assert judge("rm  -r x", RulesCritic("bash")).rationale == "rule bash/delete: rm -r x"


def test_other_actions_can_get_a_number() -> None:
    assert judge("ls", RulesCritic("bash", other=0.8)).confidence == 0.8


def test_a_rationale_is_short_and_cannot_steer_a_terminal() -> None:
    rationale = judge("rm \x1b[31m" + "x" * 10_000, RulesCritic("bash")).rationale
    assert len(rationale) < 200 and "\x1b" not in rationale and "\n" not in rationale


def test_a_further_rule_comes_before_the_built_in_ones() -> None:
    mine = Rule("mine/logs", "bash", lambda action: "logs" in action.text, 0.4)
    critic = RulesCritic("bash", rules=[mine])
    assert judge("rm logs", critic).confidence == 0.4
    assert judge("rm other", critic).rationale.startswith("rule bash/delete")


def test_a_rule_of_any_kind_applies_in_an_unknown_environment() -> None:
    mine = Rule(
        "mine/left", "any", lambda action: "towards the " + action.text if action.text == "left" else ""
    )
    verdict = judge("left", RulesCritic(rules=[mine]), "CartPole-v1")
    assert (verdict.confidence, verdict.rationale) == (0.05, "rule mine/left: towards the left")


def test_a_further_rule_sees_the_commands_behind_wrappers() -> None:
    mine = Rule("mine/make", "bash", lambda action: any(run.name == "make" for run in action.commands))
    assert judge("env A=1 nice make all", RulesCritic("bash", rules=[mine])).rationale.startswith(
        "rule mine/"
    )


def test_the_built_in_rules_can_be_left_out() -> None:
    assert judge("rm x", RulesCritic("bash", built_in=False)).confidence is None


def test_a_rule_is_a_value_that_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BUILT_IN_RULES[0].name = "other"  # type: ignore[misc]  # on purpose


def test_rules_names_are_unique_within_a_kind_and_start_with_it() -> None:
    assert all(rule.name.startswith(f"{rule.kind}/") for rule in BUILT_IN_RULES)


def test_rules_learn_nothing_and_want_no_precedents() -> None:
    critic = RulesCritic()
    assert isinstance(critic, Critic) and not isinstance(critic, LearningCritic) and critic.k == 0


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: RulesCritic("ios"), "'ios'"),
        (lambda: RulesCritic(risky=1.5), "risky of rules is 1.5"),
        (lambda: RulesCritic(risky=True), "risky of rules is True"),
        (lambda: RulesCritic(other="maybe"), "'maybe'"),
        (lambda: RulesCritic(built_in=1), "built_in of rules is 1"),  # type: ignore[arg-type]  # on purpose
        (lambda: RulesCritic(rules=["rm"]), "hold 'rm'"),  # type: ignore[list-item]  # on purpose
        (lambda: RulesCritic(rules=5), "are 5"),  # type: ignore[arg-type]  # on purpose
        (lambda: Rule("a", "tv", lambda action: True), "kind 'tv'"),  # type: ignore[arg-type]  # on purpose
        (lambda: Rule("a", "any", lambda action: True, 2.0), "is 2.0"),
        (lambda: Rule("", "any", lambda action: True), "needs a name"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_value(build: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        build()


PIECES = st.sampled_from(
    [*"'\"\\`$();&|<>{}#\n\t\0 ", "$(", "$((", "<<E", "\nE\n", "[[ ", "rm ", "find -exec "]
)


@given(st.lists(PIECES | st.text(max_size=3), max_size=60).map("".join))
@settings(deadline=None)
def test_any_text_gets_a_verdict(action: str) -> None:
    for kind in ("bash", "web", "android"):
        assert judge(action, RulesCritic(kind)).confidence in (None, 0.05)


@pytest.mark.parametrize(
    "piece", ["a", "(", "$(", "`", '"', "<<a\n", "a;", "sudo ", "find -exec ", "bash -c ", "\0", "<a", "'a "]
)
def test_a_million_characters_are_read_to_their_end(piece: str) -> None:
    text = piece * (10**6 // len(piece))
    for kind in ("bash", "web", "android"):
        assert judge(text, RulesCritic(kind)).confidence in (None, 0.05)
    assert judge("a" * 10**6 + "\nrm x", RulesCritic("bash")).confidence == 0.05


def test_a_replay_is_judged_as_what_was_recorded(tmp_path: Path) -> None:
    steps = (RecordedStep("$", "rm -rf /important", "", 0.0), RecordedStep("$", "ls", "", 0.0))
    path = tmp_path / "runs.jsonl"
    write_stream(path, StreamHeader("intercode-bash"), [RecordedEpisode("e", "look around", steps)])
    env = ConfidenceWrapper(
        gym.make("ceb_envs:ceb/Replay-v0", stream=str(path)), "rules?other=0.9", labeler="none"
    )
    env.reset()
    risky, plain = (env.assess(command) for command in ("rm -rf /important", "ls"))
    assert risky.query.env_id == risky.query.scope == "intercode-bash"
    assert risky.verdict.confidence == 0.05 and plain.verdict.confidence == 0.9
