"""The dashboard "Gander: speedup": the speedup from drafting, what is drafted, and where a step's time goes."""

from __future__ import annotations

from deploy.grafana.panel import (
    METHOD,
    Section,
    bars,
    buckets,
    graph,
    heatmap,
    increase,
    quantiles,
    stat,
    sum_rate,
    total,
)

EMITTED, FORWARDS = "gander_emitted_tokens_total", "gander_target_forwards_total"
DRAFTED, ACCEPTED = "gander_drafted_tokens_total", "gander_accepted_tokens_total"
DEPTHS = f'{METHOD},depth=~"[1-9]|1[0-2]"'
STEPS = sum_rate("gander_steps_total")


def _speedup(by: str = "") -> str:
    return f"{sum_rate('gander_plain_seconds_total', by=by)} / {sum_rate('gander_decode_seconds_total', by=by)}"


NOW = Section(
    "Now",
    (
        stat(
            "Speedup",
            "Tokens per second of decoding against plain decoding at the same load; steps with prompt rows "
            "are left out. Below 1 drafting costs more than it brings.",
            "suffix:×",
            {"speedup": _speedup()},
            decimals=2,
            floor=1,
        ),
        stat(
            "Acceptance length τ",
            "Tokens emitted per target forward of a request, bonus token included. 1 is plain decoding.",
            "none",
            {"τ": f"{sum_rate(EMITTED, METHOD)} / {sum_rate(FORWARDS, METHOD)}"},
            decimals=2,
        ),
        stat(
            "Acceptance",
            "Accepted drafted tokens over drafted tokens. Trees offer several tokens for one place, so a "
            "low share can still pay.",
            "percentunit",
            {"acceptance": f"{sum_rate(ACCEPTED, METHOD)} / {sum_rate(DRAFTED, METHOD)}"},
            decimals=1,
        ),
        stat(
            "Tokens per second",
            "Tokens given to clients, all requests together.",
            "suffix: tok/s",
            {"tokens/s": sum_rate(EMITTED)},
            decimals=0,
        ),
        stat(
            "Time to first token, median",
            "From a request's arrival to its first token, prompt included.",
            "s",
            quantiles("gander_time_to_first_token_seconds", [0.5]),
        ),
        stat(
            "Running",
            "Requests being decoded or prefilled; every choice of a call is one.",
            "none",
            {"running": total("gander_running")},
        ),
    ),
)

SPEED = Section(
    "Speed",
    (
        graph(
            "Speedup: drafted against plain at the same load",
            "Seconds that plain decoding would have needed for the same tokens, over the seconds the steps "
            "took, by server. The line at 1 is plain decoding.",
            "suffix:×",
            {"{{instance}}": _speedup("instance")},
            decimals=2,
            floor=1,
        ),
        graph(
            "Seconds of decoding: spent, and plain",
            "Seconds per second spent in decode steps, and what plain decoding would have needed for their "
            "tokens. The space between the lines is what drafting saves.",
            "s",
            {
                "plain would need": sum_rate("gander_plain_seconds_total"),
                "spent": sum_rate("gander_decode_seconds_total"),
            },
        ),
        graph(
            "Tokens per second by method",
            "Tokens given to clients, by the method that drafted; stacked, so that the top is their sum.",
            "suffix: tok/s",
            {"{{method}}": sum_rate(EMITTED, METHOD, "method")},
            is_stacked=True,
        ),
    ),
)

ACCEPTANCE = Section(
    "Acceptance",
    (
        graph(
            "Acceptance length τ by method",
            "Tokens emitted per target forward of a request, the bonus token included, by method. Plain "
            "decoding (none) is at 1.",
            "none",
            {"{{method}}": f"{sum_rate(EMITTED, METHOD, 'method')} / {sum_rate(FORWARDS, METHOD, 'method')}"},
            decimals=1,
        ),
        graph(
            "Acceptance by source",
            "Accepted drafted tokens over drafted tokens, by where the tokens were drafted from.",
            "percentunit",
            {"{{source}}": f"{sum_rate(ACCEPTED, METHOD, 'source')} / {sum_rate(DRAFTED, METHOD, 'source')}"},
            limit=1,
        ),
        bars(
            "Trees accepted to a depth",
            "Share of draft trees whose accepted path reaches a depth, over the time shown: how deep a "
            "tree is worth drafting.",
            "percentunit",
            {
                "depth {{depth}}": f"sort_desc({increase('gander_accepted_tokens_by_depth_total', DEPTHS, 'depth')} "
                f"/ scalar({increase('gander_drafts_total', METHOD)}))"
            },
            limit=1,
            is_instant=True,
        ),
    ),
)

TREES = Section(
    "Trees",
    (
        graph(
            "Nodes per step: accepted and wasted",
            "Drafted nodes per engine step, all requests together: those the target accepted, and those it "
            "verified for nothing.",
            "suffix: nodes",
            {
                "accepted": f"{sum_rate(ACCEPTED)} / {STEPS}",
                "wasted": f"({sum_rate(DRAFTED)} - {sum_rate(ACCEPTED)}) / {STEPS}",
            },
            decimals=1,
            is_stacked=True,
        ),
        heatmap(
            "Budget chosen",
            "Nodes the scheduler allowed a request's tree: 0 is a plain step; otherwise the method's or "
            "the request's own number, or the server's most, where the price of a node limits the tree.",
            "none",
            buckets("gander_budget_nodes", METHOD),
        ),
        heatmap(
            "Tree size",
            "Nodes drafted for a request in a step, the root left out: what came of the budget.",
            "none",
            buckets("gander_tree_nodes", METHOD),
        ),
    ),
)

CHOICES = Section(
    "Choices and time",
    (
        graph(
            "Requests by method and reason",
            "Ended requests per second by the method that drafted last and why it did: requested by name, "
            "or as a fallback.",
            "reqps",
            {"{{method}}, {{choice}}": sum_rate("gander_choices_total", METHOD, "method, choice")},
            is_stacked=True,
        ),
        graph(
            "Seconds by phase of a step",
            "Mean seconds of an engine step by phase. draft_model and draft make the trees, forward and "
            "sample verify them, commit and observe keep what was learned.",
            "s",
            {"{{phase}}": f"{sum_rate('gander_phase_seconds_total', by='phase')} / scalar({STEPS})"},
            is_stacked=True,
        ),
        graph(
            "Requests the draft model gave up",
            "Requests per second the draft model could do nothing more for, by reason; another method drafted on.",
            "reqps",
            {"{{reason}}": sum_rate("gander_draft_refusals_total", by="reason")},
        ),
    ),
)

SECTIONS = (NOW, SPEED, ACCEPTANCE, TREES, CHOICES)
