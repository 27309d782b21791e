"""The scrape configuration, the rules and their unit tests, by promtool."""

import re
import subprocess

import pytest

from deploy.monitoring.live import CONFIG, SERVICE, quick_config
from tests.programs import program

RULES = (CONFIG / "rules" / "gander.yml").read_text()
TESTS = (CONFIG / "rules_test.yml").read_text()


def promtool(*arguments: str) -> str:
    command = [program("promtool", "prometheus"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_configuration_and_its_rules_are_valid() -> None:
    assert "1 rule files found" in promtool("check", "config", str(CONFIG / "prometheus.yml"))


def test_rules_and_alerts_do_what_their_tests_say() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(CONFIG / "rules_test.yml"))


def test_every_rule_and_every_alert_has_a_test() -> None:
    records = set(re.findall(r"- record: (\S+)", RULES))
    alerts = set(re.findall(r"- alert: (\S+)", RULES))
    assert len(records) == 7
    assert len(alerts) == 6
    assert records == set(re.findall(r"- expr: (\S+)", TESTS))
    assert alerts == set(re.findall(r"alertname: (\S+)", TESTS))


def test_every_alert_says_what_happened_in_sentences() -> None:
    summaries = re.findall(r"summary: (.+)", RULES)
    assert len(summaries) == RULES.count("- alert:") == RULES.count("description:") == RULES.count("severity:")
    assert all(summary.endswith(".") for summary in summaries)


def test_a_quick_configuration_differs_in_intervals_and_address_alone() -> None:
    text = (CONFIG / "prometheus.yml").read_text()
    assert SERVICE in text
    quick = quick_config(text, "127.0.0.1:1234")
    assert '["127.0.0.1:1234"]' in quick
    assert "interval: 5s" not in quick
    with pytest.raises(AssertionError):
        quick_config(text.replace(SERVICE, "elsewhere:8000"), "127.0.0.1:1234")
