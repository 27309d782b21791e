"""The dashboard "Gander: server": latencies, load, memory and errors."""

from __future__ import annotations

from deploy.grafana.panel import INSTANCE, Panel, Query, Section, buckets, quantiles, sum_rate


def _sum(metric: str) -> str:
    return f"sum({metric}{{{INSTANCE}}})"


STATE = Section(
    "State",
    (
        Panel(
            kind="stat",
            title="Serving",
            description="Servers that would answer a completion now.",
            queries=(Query(_sum("gander_ready"), "ready"),),
            unit="none",
            width=4,
            height=4,
            floor=1,
        ),
        Panel(
            kind="stat",
            title="Model",
            description="What serves: model, version, device, number format and attention kernel.",
            queries=(
                Query(
                    f"gander_info{{{INSTANCE}}}",
                    "{{model}} · {{version}} · {{device}} · {{dtype}} · {{attention}}",
                ),
            ),
            unit="none",
            width=8,
            height=4,
            is_name=True,
        ),
        Panel(
            kind="stat",
            title="KV cache in use",
            description="Share of the KV slots that requests hold; what is kept for prompts to come is not counted.",
            queries=(Query(f"{_sum('gander_slots_used')} / {_sum('gander_slots')}", "used"),),
            unit="percentunit",
            width=4,
            height=4,
            decimals=0,
        ),
        Panel(
            kind="stat",
            title="Worker restarts",
            description="Workers that died and were replaced in the time shown; their requests went on with the next.",
            queries=(Query(f"sum(increase(gander_worker_restarts_total{{{INSTANCE}}}[$__range]))", "restarts"),),
            unit="none",
            width=4,
            height=4,
            decimals=0,
            is_instant=True,
        ),
        Panel(
            kind="stat",
            title="Memory of the worker",
            description="Resident memory of the worker process: model, KV cache and sessions.",
            queries=(Query(_sum("gander_worker_resident_bytes"), "resident"),),
            unit="bytes",
            width=4,
            height=4,
        ),
    ),
)

LATENCY = Section(
    "Latency",
    (
        Panel(
            title="Time to first token",
            description="From a request's arrival to its first token, prompt included.",
            queries=quantiles("gander_time_to_first_token_seconds"),
            unit="s",
        ),
        Panel(
            title="Time per output token",
            description="First token to last, divided by the tokens after the first.",
            queries=quantiles("gander_time_per_output_token_seconds"),
            unit="s",
        ),
        Panel(
            title="End-to-end time",
            description="From a request's arrival to its end.",
            queries=quantiles("gander_request_seconds"),
            unit="s",
        ),
        Panel(
            kind="heatmap",
            title="Time to first token, all requests",
            description="Requests by their time to first token.",
            queries=buckets("gander_time_to_first_token_seconds"),
            unit="s",
        ),
        Panel(
            kind="heatmap",
            title="Time per output token, all requests",
            description="Requests by their time per output token.",
            queries=buckets("gander_time_per_output_token_seconds"),
            unit="s",
        ),
        Panel(
            kind="heatmap",
            title="End-to-end time, all requests",
            description="Requests by their end-to-end time.",
            queries=buckets("gander_request_seconds"),
            unit="s",
        ),
    ),
)

LOAD = Section(
    "Load",
    (
        Panel(
            title="Tokens per second",
            description="Tokens given to clients, and prompt tokens of requests that ended.",
            queries=(
                Query(sum_rate("gander_emitted_tokens_total"), "emitted"),
                Query(sum_rate("vllm:prompt_tokens_total"), "prompt"),
            ),
            unit="suffix: tok/s",
        ),
        Panel(
            title="Requests running and waiting",
            description="Requests in the engine; every choice of a call is one. What waits has no room in the KV "
            "cache, or too many run.",
            queries=(Query(_sum("gander_running"), "running"), Query(_sum("gander_waiting"), "waiting")),
            unit="none",
        ),
        Panel(
            title="Wait in the queue",
            description="From a request's arrival in the engine to its first forward.",
            queries=quantiles("gander_queue_seconds"),
            unit="s",
        ),
        Panel(
            title="Requests ended",
            description="Requests per second by how they ended: stop and length are replies, abort is a client that "
            "left, workergone a worker that died.",
            queries=(Query(sum_rate("gander_requests_total", by="end"), "{{end}}"),),
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="Rows per step",
            description="Rows of a packed forward: prompt tokens, and roots and nodes of the trees.",
            queries=(
                Query(f"{sum_rate('gander_prefill_rows_total')} / {sum_rate('gander_steps_total')}", "prompt"),
                Query(
                    f"({sum_rate('gander_rows_total')} - {sum_rate('gander_prefill_rows_total')}) "
                    f"/ {sum_rate('gander_steps_total')}",
                    "trees",
                ),
            ),
            unit="suffix: rows",
            is_stacked=True,
        ),
        Panel(
            title="Steps per second",
            description="Engine steps, each one packed forward over all running requests.",
            queries=(Query(sum_rate("gander_steps_total", by="instance"), "{{instance}}"),),
            unit="suffix: steps/s",
        ),
    ),
)

MEMORY = Section(
    "Memory",
    (
        Panel(
            title="KV slots in use",
            description="Share of the KV cache's slots that requests hold, by server.",
            queries=(
                Query(
                    f"gander_slots_used{{{INSTANCE}}} / gander_slots{{{INSTANCE}}}",
                    "{{instance}}",
                ),
            ),
            unit="percentunit",
            limit=1,
        ),
        Panel(
            title="KV slots held and kept",
            description="Slots that requests hold, and those that are kept for prompts to come until room is needed; a "
            "slot is room for one token.",
            queries=(
                Query(_sum("gander_slots_used"), "held"),
                Query(_sum("gander_slots_cached"), "kept"),
            ),
            unit="short",
            is_stacked=True,
        ),
        Panel(
            title="Prompt tokens found in the cache",
            description="Share of the prompts' tokens that were not run, since a request of the same key and salt had.",
            queries=(
                Query(
                    f"{sum_rate('gander_prefix_cache_hits_tokens_total')} "
                    f"/ {sum_rate('gander_prefix_cache_queries_tokens_total')}",
                    "found",
                ),
            ),
            unit="percentunit",
            limit=1,
        ),
        Panel(
            title="Preemptions",
            description="Requests per second that gave up their place or room to others, to be run again: where keys "
            "or calls do not compete for places, the KV cache is too small for what runs.",
            queries=(Query(sum_rate("gander_preemptions_total", by="instance"), "{{instance}}"),),
            unit="reqps",
        ),
        Panel(
            title="Sessions",
            description="Sessions whose stores are kept.",
            queries=(Query(_sum("gander_sessions"), "sessions"),),
            unit="none",
        ),
        Panel(
            title="Bytes of the stores",
            description="What drafting remembers of all sessions, and the draft model's weights and part of the slots.",
            queries=(
                Query(_sum("gander_session_bytes"), "sessions"),
                Query(_sum("gander_draft_bytes"), "draft model"),
            ),
            unit="bytes",
        ),
        Panel(
            title="Memory of the processes",
            description="Resident memory of the worker and of the server, and what the worker said it takes of its "
            "device once full, sessions apart.",
            queries=(
                Query(_sum("gander_worker_resident_bytes"), "worker"),
                Query(_sum("gander_worker_expected_bytes"), "worker, once full"),
                Query(_sum("process_resident_memory_bytes"), "server"),
            ),
            unit="bytes",
        ),
        Panel(
            title="Busy processor of the server process",
            description="Processor seconds per second of the HTTP process, which also encodes the streams.",
            queries=(Query(sum_rate("process_cpu_seconds_total"), "server"),),
            unit="percentunit",
        ),
    ),
)

FAULTS = Section(
    "What goes wrong",
    (
        Panel(
            title="Errors by code",
            description="Errors answered per second, by the code clients see, also inside streams.",
            queries=(Query(sum_rate("gander_errors_total", by="code"), "{{code}}"),),
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="HTTP statuses",
            description="HTTP requests per second by status; 499 is a client that left.",
            queries=(Query(sum_rate("gander_http_requests_total", by="status"), "{{status}}"),),
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="Worker restarts by server",
            description="Worker processes started after the first, by server.",
            queries=(Query(f"gander_worker_restarts_total{{{INSTANCE}}}", "{{instance}}"),),
            unit="none",
        ),
    ),
)

SECTIONS = (STATE, LATENCY, LOAD, MEMORY, FAULTS)
