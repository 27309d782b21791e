"""What /metrics says after known work, and what a step costs the server."""

import re
from pathlib import Path

import httpx
import pytest
from msgspec import structs
from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from decoding import __version__
from decoding.core.stats import DRAFTED_SOURCES, METHOD_NAMES, EngineStats, MethodCounts, NodeHistogram, StepStats
from decoding.core.tree import Source
from decoding.drafting.registry import METHODS
from decoding.engine.tally import SOURCE_NAMES
from decoding.worker.messages import StepReport
from server.config import ServerSettings
from server.metrics.exposition import engine_metrics
from server.metrics.metrics import ModelMetrics, prompt_class
from server.metrics.server_metrics import ServerMetrics
from server.metrics.totals import WINDOW_STEPS, StepTotals
from server.metrics.vllm_names import vllm_engine_metrics
from tests.server.servers import RunningServer, make_model_folder, running_server, wait_until

ENGINE = EngineStats(
    running=1,
    waiting=2,
    slots_used=3,
    slots_cached=4,
    slots_total=30,
    sessions=1,
    session_bytes=5,
    resident_bytes=6,
    draft_bytes=800,
    state_bytes=900,
    state_checkpoints=7,
)


def step(step_seconds: float = 0.001, plain_seconds: float = 0.003, prefill_rows: int = 0) -> StepReport:
    budgets, trees = NodeHistogram(), NodeHistogram()
    for num_nodes in (12, 8):
        budgets.add(64)
        trees.add(num_nodes)
    counts = MethodCounts(
        forwards=2,
        emitted=7,
        budgets=budgets,
        trees=trees,
        drafts=2,
        drafted=20,
        accepted=5,
        drafted_by_source={"context": 12, "adjacency": 8},
        accepted_by_source={"context": 4, "adjacency": 1},
        accepted_by_depth=[2, 2, 1],
    )
    stats = StepStats(
        rows=22,
        prefill_rows=prefill_rows,
        step_seconds=step_seconds,
        plain_seconds=plain_seconds,
        phase_seconds=dict.fromkeys(("schedule", "draft", "forward", "sample", "commit", "observe"), 0.0001),
        counts_by_method={"spine": counts},
    )
    return StepReport(steps=[stats], engine=ENGINE)


def test_steps_add_up() -> None:
    totals = StepTotals()
    for _ in range(3):
        totals.add(step())
    totals.add(StepReport(steps=[], engine=structs.replace(ENGINE, running=0)))
    assert totals.engine.running == 0
    assert (totals.steps, totals.emitted["spine"], totals.forwards["spine"]) == (3, 21, 6)
    assert totals.drafted["spine", "context"] == 36
    assert totals.accepted_by_depth["spine", 3] == 3
    assert totals.phase_seconds["draft"] == pytest.approx(0.0003)


def test_the_draft_model_has_metrics_of_its_own() -> None:
    totals = StepTotals()
    for refusals in ({"nan": 1}, {"nan": 1, "context": 2}, {}):
        report = step()
        stats = structs.replace(
            report.steps[0], refusals=refusals, phase_seconds={"draft_model": 0.002, "forward": 0.001}
        )
        totals.add(StepReport(steps=[stats], engine=ENGINE))
    samples = samples_of(totals)
    expected = {
        ("gander_draft_bytes",): 800,
        ("gander_draft_refusals_total", "nan"): 2,
        ("gander_draft_refusals_total", "context"): 2,
        ("gander_phase_seconds_total", "draft_model"): 0.006,
        ("gander_phase_seconds_total", "forward"): 0.003,
    }
    assert {key: samples[key] for key in expected} == pytest.approx(expected)


def test_the_cache_has_metrics_under_both_names() -> None:
    totals = StepTotals()
    for queries, hits, preemptions in ((100, 0, 0), (0, 0, 2), (60, 48, 1)):
        stats = structs.replace(step().steps[0], prefix_queries=queries, prefix_hits=hits, preemptions=preemptions)
        totals.add(StepReport(steps=[stats], engine=ENGINE))
    samples = samples_of(totals)
    expected = {
        ("gander_prefix_cache_queries_tokens_total",): 160,
        ("gander_prefix_cache_hits_tokens_total",): 48,
        ("gander_preemptions_total",): 3,
        ("vllm:prefix_cache_queries_total", "toy", "0"): 160,
        ("vllm:prefix_cache_hits_total", "toy", "0"): 48,
        ("vllm:gpu_prefix_cache_queries_total", "toy", "0"): 160,
        ("vllm:gpu_prefix_cache_hits_total", "toy", "0"): 48,
        ("vllm:num_preemptions_total", "toy", "0"): 3,
        ("gander_slots_used",): 3,
        ("gander_slots_cached",): 4,
        ("gander_state_bytes",): 900,
        ("gander_state_checkpoints",): 7,
        ("vllm:kv_cache_usage_perc", "toy", "0"): 0.1,
        ("vllm:gpu_cache_usage_perc", "toy", "0"): 0.1,
    }
    assert {key: samples[key] for key in expected} == pytest.approx(expected)


def samples_of(totals: StepTotals) -> dict[tuple[str, ...], float]:
    """By name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in (*engine_metrics(totals), *vllm_engine_metrics(totals, "toy", 0))
        for sample in family.samples
    }


def test_budgets_and_trees_are_histograms_by_method() -> None:
    totals = StepTotals()
    for num_nodes in (0, 1, 3, 8, 9, 128, 129, 5000):
        nodes = NodeHistogram()
        nodes.add(num_nodes)
        report = step()
        counts = {"dynamic": MethodCounts(budgets=nodes, trees=NodeHistogram())}
        totals.add(StepReport(steps=[structs.replace(report.steps[0], counts_by_method=counts)], engine=ENGINE))
    samples = samples_of(totals)
    below = {"0.0": 1, "1.0": 2, "2.0": 2, "4.0": 3, "8.0": 4, "16.0": 5, "64.0": 5, "128.0": 6, "+Inf": 8}
    assert {bound: samples["gander_budget_nodes_bucket", "dynamic", bound] for bound in below} == below
    assert samples["gander_budget_nodes_sum", "dynamic"] == 5278
    assert samples["gander_budget_nodes_count", "dynamic"] == 8
    assert samples["gander_tree_nodes_count", "dynamic"] == 0


def test_acceptance_length_and_speedup_follow_from_counters() -> None:
    totals = StepTotals()
    for seconds, prefill_rows in ((0.001, 0), (0.003, 0), (0.100, 64)):
        totals.add(step(seconds, 0.003, prefill_rows))
    samples = samples_of(totals)
    assert samples["gander_emitted_tokens_total", "spine"] / samples["gander_target_forwards_total", "spine"] == 3.5
    assert samples[("gander_plain_seconds_total",)] == pytest.approx(0.006)
    assert samples[("gander_decode_seconds_total",)] == pytest.approx(0.004)
    assert samples[("gander_step_seconds_total",)] == pytest.approx(0.104)


def test_what_must_not_happen_begins_at_zero_so_that_the_first_time_is_seen() -> None:
    text = generate_latest(ServerMetrics([ModelMetrics("toy")]).registry).decode()
    for sample in (
        'draft_refusals_total{model_name="toy",reason="context"}',
        'preemptions_total{model_name="toy"}',
        'requests_total{end="failed",model_name="toy"}',
        'errors_total{code="internal_error"}',
        'worker_restarts_total{model_name="toy"}',
    ):
        assert f"gander_{sample} 0.0" in text


def test_every_series_that_a_step_adds_to_is_there_before_the_first_but_for_deeper_places() -> None:
    fresh, used = StepTotals(), StepTotals()
    used.add(step())
    added = samples_of(used).keys() - samples_of(fresh).keys()
    assert added
    assert {name for name, *_ in added} <= {
        "gander_accepted_tokens_by_depth_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    }
    assert not any(samples_of(fresh).values())


def test_what_counts_are_kept_by_is_what_there_is() -> None:
    assert tuple(METHODS) == METHOD_NAMES
    assert tuple(SOURCE_NAMES[Source.CONTEXT : Source.BONUS]) == DRAFTED_SOURCES
    text = generate_latest(ModelMetrics("toy").registry).decode()
    assert 'gander_choices_total{choice="waiting",method="auto"} 0.0' in text


def test_info_says_what_serves(server: RunningServer) -> None:
    name = server.model
    labels = (
        f'attention="exact",device="cpu",dtype="float32",model="{name}",model_name="{name}",version="{__version__}"'
    )
    assert f"gander_info{{{labels}}} 1.0" in server.get("/metrics").text


def test_the_speedup_is_plain_seconds_over_seconds_in_a_window_of_decode_steps() -> None:
    totals = StepTotals()
    assert totals.speedup == 0
    totals.add(step(0.001, 0.003))
    totals.add(step(0.003, 0.003))
    totals.add(step(0.100, 0.003, prefill_rows=64))
    totals.add(step(0.100, 0.0))
    assert totals.speedup == pytest.approx(1.5)
    for _ in range(WINDOW_STEPS):
        totals.add(step(0.001, 0.002))
    assert totals.speedup == pytest.approx(2.0)


def test_the_time_to_the_first_token_has_five_classes_of_prompts_from_the_start() -> None:
    lengths = {1: "1k", 1024: "1k", 1025: "4k", 16384: "16k", 16385: "64k", 65536: "64k", 65537: "more"}
    assert {length: prompt_class(length) for length in lengths} == lengths
    text = generate_latest(ModelMetrics("toy").registry).decode()
    counts = re.findall(r'^gander_time_to_first_token_seconds_count{prompt_tokens="(.+)"} 0.0$', text, re.M)
    assert counts == ["1k", "4k", "16k", "64k", "more"]


def test_metrics_count_known_work(tmp_path: Path) -> None:
    settings = ServerSettings(model=str(make_model_folder(tmp_path / "toy")), drain_seconds=1)
    with running_server(settings) as server:
        assert server.post(prompt="abc", max_tokens=30, n=2).status_code == 200
        assert server.post(prompt="abc", max_tokens=0).status_code == 400
        wait_until(lambda: server.metric("gander_emitted_tokens_total") == 60)
        expected = {
            "vllm:generation_tokens_total": 60,
            "vllm:prompt_tokens_total": 6,
            "gander_requests_total": 2,
            "gander_choices_total": 2,
            "gander_time_to_first_token_seconds_count": 2,
            "gander_time_per_output_token_seconds_count": 2,
            "gander_request_seconds_count": 2,
            "gander_queue_seconds_count": 2,
            "vllm:time_to_first_token_seconds_count": 2,
            "vllm:e2e_request_latency_seconds_count": 2,
            "vllm:inter_token_latency_seconds_count": 18,
            "vllm:request_success_total": 2,
            "gander_target_forwards_total": 20,
            "gander_drafted_tokens_total": 80,
            "vllm:spec_decode_num_drafts_total": 20,
            "vllm:spec_decode_num_draft_tokens_total": 80,
            "vllm:spec_decode_num_accepted_tokens_total": 40,
            "vllm:spec_decode_num_accepted_tokens_per_pos_total": 40,
            "gander_accepted_tokens_by_depth_total": 40,
            "gander_speedup": 2.0,
            "gander_running": 0,
            "gander_slots": 1000,
            "gander_slots_total": 1000,  # the old name, for one release
            "gander_prefix_cache_queries_tokens_total": 6,
            "gander_prefix_cache_hits_tokens_total": 0,
            "gander_worker_expected_bytes": 3 * 2**30,
            "gander_ready": 1,
            "gander_errors_total": 1,
        }
        assert {name: server.metric(name) for name in expected} == pytest.approx(expected)
        text = server.get("/metrics").text
        assert 'gander_http_requests_total{route="/v1/completions",status="200"} 1.0' in text
        assert 'gander_http_requests_total{route="/v1/completions",status="400"} 1.0' in text
        assert 'vllm:num_requests_running{engine="0",model_name="toy"} 0.0' in text
        assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="toy"} 2.0' in text
        cache = 'block_size="16",cache_dtype="float32",engine="0",model_name="toy",num_gpu_blocks="62"'
        assert f"vllm:cache_config_info{{{cache}}} 1.0" in text
        assert 'gander_choices_total{choice="requested",method="spine",model_name="toy"} 2.0' in text
        assert "plain decoding would have needed" in text


def test_only_counters_are_called_totals(server: RunningServer) -> None:
    """promtool's rule, except for a name that is kept for one release."""
    kinds = re.findall(r"^# TYPE (\S+) (\S+)$", server.get("/metrics").text, re.MULTILINE)
    assert [name for name, kind in kinds if name.endswith("_total") and kind != "counter"] == ["gander_slots_total"]


def test_cached_prompts_and_preemptions_are_counted(server: RunningServer) -> None:
    names = ("queries_tokens", "hits_tokens")
    before = [server.metric(f"gander_prefix_cache_{name}_total") for name in names]
    preemptions = server.metric("gander_preemptions_total")
    prompt = '{"say": "a", "cached": [16, 20], "preemptions": 3}'
    assert server.post(prompt=prompt, n=2).status_code == 200
    wait_until(lambda: server.metric("gander_preemptions_total") == preemptions + 6)
    after = [server.metric(f"gander_prefix_cache_{name}_total") for name in names]
    assert [one - other for one, other in zip(after, before, strict=True)] == [2 * len(prompt), 36]
    assert server.metric("gander_slots_cached") == 20


def test_both_formats_parse(server: RunningServer) -> None:
    server.post(prompt="abc", max_tokens=3)
    plain = {family.name for family in text_string_to_metric_families(server.get("/metrics").text)}
    assert {"gander_speedup", "gander_emitted_tokens", "vllm:kv_cache_usage_perc"} <= plain

    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    response = server.http.get("/metrics", headers=accept)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert len(list(parse_openmetrics(response.text))) > 20


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "text/plain;version=0.0.4",
        "text/plain;version=1.0.0;escaping=allow-utf-8",
        "application/openmetrics-text",
        "application/openmetrics-text;version=0.0.1;q=0.75",
        "application/openmetrics-text;version=1.0.0",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6",
        "application/openmetrics-text;version=1.0.0;escaping=underscores",
    ],
)
def test_names_are_the_same_however_a_scraper_asks(server: RunningServer, accept: str) -> None:
    text = server.http.get("/metrics", headers={"Accept": accept}).text
    assert "\nvllm:num_requests_waiting{" in text
    assert "\ngander_target_forwards_total" in text or "\n# TYPE gander_target_forwards" in text
    assert "vllm_" not in text


def test_a_request_that_was_left_counts_as_aborted_and_not_as_latency(server: RunningServer) -> None:

    before = server.metric("gander_request_seconds_count")
    with pytest.raises(httpx.ReadTimeout):
        server.http.post(
            "/v1/completions",
            json={"prompt": '{"per_step": 1, "delay": 0.01}', "max_tokens": 4000},
            timeout=0.2,
        )
    wait_until(lambda: 'gander_requests_total{end="abort",' in server.get("/metrics").text)
    assert server.metric("gander_request_seconds_count") == before
    wait_until(lambda: 'status="499"' in server.get("/metrics").text)
