"""The dashboard "Gander: server": latencies, load, memory and errors."""

from __future__ import annotations

from deploy.grafana.panel import INSTANCE, Section, buckets, graph, heatmap, increase, quantiles, stat, sum_rate, total

STATE = Section(
    "State",
    (
        stat(
            "Serving", "Servers that would answer a completion now.", "none", {"ready": total("gander_ready")}, floor=1
        ),
        stat(
            "Model",
            "What serves: model, version, device, number format and attention kernel.",
            "none",
            {"{{model}} · {{version}} · {{device}} · {{dtype}} · {{attention}}": f"gander_info{{{INSTANCE}}}"},
            width=8,
            is_name=True,
        ),
        stat(
            "KV cache in use",
            "Share of the KV slots that requests hold; what is kept for prompts to come is not counted.",
            "percentunit",
            {"used": f"{total('gander_slots_used')} / {total('gander_slots')}"},
            decimals=0,
        ),
        stat(
            "Worker restarts",
            "Workers that died and were replaced in the time shown; their requests went on with the next.",
            "none",
            {"restarts": increase("gander_worker_restarts_total")},
            decimals=0,
            is_instant=True,
        ),
        stat(
            "Memory of the worker",
            "Resident memory of the worker process: model, KV cache and sessions.",
            "bytes",
            {"resident": total("gander_worker_resident_bytes")},
        ),
    ),
)

LATENCY = Section(
    "Latency",
    (
        graph(
            "Time to first token",
            "From a request's arrival to its first token, prompt included.",
            "s",
            quantiles("gander_time_to_first_token_seconds"),
        ),
        graph(
            "Time to first token by prompt",
            "The median, by how many tokens the prompt has: up to so many, or more.",
            "s",
            {
                "{{prompt_tokens}}": "histogram_quantile(0.5, "
                f"{sum_rate('gander_time_to_first_token_seconds_bucket', by='le, prompt_tokens')})"
            },
        ),
        graph(
            "Time per output token",
            "First token to last, divided by the tokens after the first.",
            "s",
            quantiles("gander_time_per_output_token_seconds"),
        ),
        graph("End-to-end time", "From a request's arrival to its end.", "s", quantiles("gander_request_seconds")),
        heatmap(
            "Time to first token, all requests",
            "Requests by their time to first token.",
            "s",
            buckets("gander_time_to_first_token_seconds"),
        ),
        heatmap(
            "Time per output token, all requests",
            "Requests by their time per output token.",
            "s",
            buckets("gander_time_per_output_token_seconds"),
        ),
        heatmap(
            "End-to-end time, all requests",
            "Requests by their end-to-end time.",
            "s",
            buckets("gander_request_seconds"),
        ),
    ),
)

LOAD = Section(
    "Load",
    (
        graph(
            "Tokens per second",
            "Tokens given to clients, and prompt tokens of requests that ended.",
            "suffix: tok/s",
            {"emitted": sum_rate("gander_emitted_tokens_total"), "prompt": sum_rate("vllm:prompt_tokens_total")},
        ),
        graph(
            "Requests running and waiting",
            "Requests in the engine; every choice of a call is one. What waits has no room in the KV "
            "cache, or too many run.",
            "none",
            {"running": total("gander_running"), "waiting": total("gander_waiting")},
        ),
        graph(
            "Prompt tokens remaining",
            "Tokens of open requests' prompts that have not run yet, be it that they wait or run.",
            "none",
            {"remaining": total("gander_prompt_tokens_remaining")},
        ),
        graph(
            "Wait in the queue",
            "From a request's arrival in the engine to its first forward.",
            "s",
            quantiles("gander_queue_seconds"),
        ),
        graph(
            "Requests ended",
            "Requests per second by how they ended: stop and length are replies, abort is a client that "
            "left, workergone a worker that died.",
            "reqps",
            {"{{end}}": sum_rate("gander_requests_total", by="end")},
            is_stacked=True,
        ),
        graph(
            "Rows per step",
            "Rows of a packed forward: prompt tokens, and roots and nodes of the trees.",
            "suffix: rows",
            {
                "prompt": f"{sum_rate('gander_prefill_rows_total')} / {sum_rate('gander_steps_total')}",
                "trees": f"({sum_rate('gander_rows_total')} - {sum_rate('gander_prefill_rows_total')}) "
                f"/ {sum_rate('gander_steps_total')}",
            },
            is_stacked=True,
        ),
        graph(
            "Steps per second",
            "Engine steps, each one packed forward over all running requests.",
            "suffix: steps/s",
            {"{{instance}}": sum_rate("gander_steps_total", by="instance")},
        ),
    ),
)

MEMORY = Section(
    "Memory",
    (
        graph(
            "KV slots in use",
            "Share of the KV cache's slots that requests hold, by server.",
            "percentunit",
            {"{{instance}}": f"gander_slots_used{{{INSTANCE}}} / gander_slots{{{INSTANCE}}}"},
            limit=1,
        ),
        graph(
            "KV slots held and kept",
            "Slots that requests hold, and those that are kept for prompts to come until room is needed; a "
            "slot is room for one token.",
            "short",
            {"held": total("gander_slots_used"), "kept": total("gander_slots_cached")},
            is_stacked=True,
        ),
        graph(
            "Prompt tokens found in the cache",
            "Share of the prompts' tokens that were not run, since a request of the same key and salt had.",
            "percentunit",
            {
                "found": f"{sum_rate('gander_prefix_cache_hits_tokens_total')} "
                f"/ {sum_rate('gander_prefix_cache_queries_tokens_total')}"
            },
            limit=1,
        ),
        graph(
            "Preemptions",
            "Requests per second that gave up their place or room to others, to be run again: where keys "
            "or calls do not compete for places, the KV cache is too small for what runs.",
            "reqps",
            {"{{instance}}": sum_rate("gander_preemptions_total", by="instance")},
        ),
        graph("Sessions", "Sessions whose stores are kept.", "none", {"sessions": total("gander_sessions")}),
        graph(
            "Bytes of the stores",
            "What drafting remembers of all sessions, and the draft model's weights and part of the slots.",
            "bytes",
            {"sessions": total("gander_session_bytes"), "draft model": total("gander_draft_bytes")},
        ),
        graph(
            "Memory of the processes",
            "Resident memory of the worker and of the server, and what the worker said it takes of its "
            "device once full, sessions apart.",
            "bytes",
            {
                "worker": total("gander_worker_resident_bytes"),
                "worker, once full": total("gander_worker_expected_bytes"),
                "server": total("process_resident_memory_bytes"),
            },
        ),
        graph(
            "Busy processor of the server process",
            "Processor seconds per second of the HTTP process, which also encodes the streams.",
            "percentunit",
            {"server": sum_rate("process_cpu_seconds_total")},
        ),
    ),
)

FAULTS = Section(
    "What goes wrong",
    (
        graph(
            "Errors by code",
            "Errors answered per second, by the code clients see, also inside streams.",
            "reqps",
            {"{{code}}": sum_rate("gander_errors_total", by="code")},
            is_stacked=True,
        ),
        graph(
            "HTTP statuses",
            "HTTP requests per second by status; 499 is a client that left.",
            "reqps",
            {"{{status}}": sum_rate("gander_http_requests_total", by="status")},
            is_stacked=True,
        ),
        graph(
            "Worker restarts by server",
            "Worker processes started after the first, by server.",
            "none",
            {"{{instance}}": f"gander_worker_restarts_total{{{INSTANCE}}}"},
        ),
    ),
)

SECTIONS = (STATE, LATENCY, LOAD, MEMORY, FAULTS)
