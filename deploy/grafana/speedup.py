"""The dashboard "Gander: speedup": the speedup from drafting, what is drafted, and where a step's time goes."""

from __future__ import annotations

from deploy.grafana.panel import INSTANCE, METHOD, Panel, Query, Section, buckets, quantiles, sum_rate

EMITTED, FORWARDS = "gander_emitted_tokens_total", "gander_target_forwards_total"
DRAFTED, ACCEPTED = "gander_drafted_tokens_total", "gander_accepted_tokens_total"
DEPTHS = f'{METHOD},depth=~"[1-9]|1[0-2]"'
STEPS = sum_rate("gander_steps_total")


def _speedup(by: str = "") -> str:
    return f"{sum_rate('gander_plain_seconds_total', by=by)} / {sum_rate('gander_decode_seconds_total', by=by)}"


NOW = Section(
    "Now",
    (
        Panel(
            kind="stat",
            title="Speedup",
            description="Tokens per second of decoding against plain decoding at the same load; steps with prompt rows "
            "are left out. Below 1 drafting costs more than it brings.",
            queries=(Query(_speedup(), "speedup"),),
            unit="suffix:×",
            width=4,
            height=4,
            decimals=2,
            floor=1,
        ),
        Panel(
            kind="stat",
            title="Acceptance length τ",
            description="Tokens emitted per target forward of a request, bonus token included. 1 is plain decoding.",
            queries=(Query(f"{sum_rate(EMITTED, METHOD)} / {sum_rate(FORWARDS, METHOD)}", "τ"),),
            unit="none",
            width=4,
            height=4,
            decimals=2,
        ),
        Panel(
            kind="stat",
            title="Acceptance",
            description="Accepted drafted tokens over drafted tokens. Trees offer several tokens for one place, so a "
            "low share can still pay.",
            queries=(Query(f"{sum_rate(ACCEPTED, METHOD)} / {sum_rate(DRAFTED, METHOD)}", "acceptance"),),
            unit="percentunit",
            width=4,
            height=4,
            decimals=1,
        ),
        Panel(
            kind="stat",
            title="Tokens per second",
            description="Tokens given to clients, all requests together.",
            queries=(Query(sum_rate(EMITTED), "tokens/s"),),
            unit="suffix: tok/s",
            width=4,
            height=4,
            decimals=0,
        ),
        Panel(
            kind="stat",
            title="Time to first token, median",
            description="From a request's arrival to its first token, prompt included.",
            queries=quantiles("gander_time_to_first_token_seconds")[:1],
            unit="s",
            width=4,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Running",
            description="Requests being decoded or prefilled; every choice of a call is one.",
            queries=(Query(f"sum(gander_running{{{INSTANCE}}})", "running"),),
            unit="none",
            width=4,
            height=4,
        ),
    ),
)

SPEED = Section(
    "Speed",
    (
        Panel(
            title="Speedup: drafted against plain at the same load",
            description="Seconds that plain decoding would have needed for the same tokens, over the seconds the steps "
            "took, by server. The line at 1 is plain decoding.",
            queries=(Query(_speedup("instance"), "{{instance}}"),),
            unit="suffix:×",
            decimals=2,
            floor=1,
        ),
        Panel(
            title="Seconds of decoding: spent, and plain",
            description="Seconds per second spent in decode steps, and what plain decoding would have needed for their "
            "tokens. The space between the lines is what drafting saves.",
            queries=(
                Query(sum_rate("gander_plain_seconds_total"), "plain would need"),
                Query(sum_rate("gander_decode_seconds_total"), "spent"),
            ),
            unit="s",
        ),
        Panel(
            title="Tokens per second by method",
            description="Tokens given to clients, by the method that drafted; stacked, so that the top is their sum.",
            queries=(Query(sum_rate(EMITTED, METHOD, "method"), "{{method}}"),),
            unit="suffix: tok/s",
            is_stacked=True,
        ),
    ),
)

ACCEPTANCE = Section(
    "Acceptance",
    (
        Panel(
            title="Acceptance length τ by method",
            description="Tokens emitted per target forward of a request, the bonus token included, by method. Plain "
            "decoding (none) is at 1.",
            queries=(
                Query(
                    f"{sum_rate(EMITTED, METHOD, 'method')} / {sum_rate(FORWARDS, METHOD, 'method')}",
                    "{{method}}",
                ),
            ),
            unit="none",
            decimals=1,
        ),
        Panel(
            title="Acceptance by source",
            description="Accepted drafted tokens over drafted tokens, by where the tokens were drafted from.",
            queries=(
                Query(f"{sum_rate(ACCEPTED, METHOD, 'source')} / {sum_rate(DRAFTED, METHOD, 'source')}", "{{source}}"),
            ),
            unit="percentunit",
            limit=1,
        ),
        Panel(
            kind="bargauge",
            title="Trees accepted to a depth",
            description="Share of draft trees whose accepted path reaches a depth, over the time shown: how deep a "
            "tree is worth drafting.",
            queries=(
                Query(
                    f"sort_desc(sum by (depth) (increase(gander_accepted_tokens_by_depth_total{{{DEPTHS}}}[$__range])) "
                    f"/ scalar(sum(increase(gander_drafts_total{{{METHOD}}}[$__range]))))",
                    "depth {{depth}}",
                ),
            ),
            unit="percentunit",
            limit=1,
            is_instant=True,
        ),
    ),
)

TREES = Section(
    "Trees",
    (
        Panel(
            title="Nodes per step: accepted and wasted",
            description="Drafted nodes per engine step, all requests together: those the target accepted, and those it "
            "verified for nothing.",
            queries=(
                Query(f"{sum_rate(ACCEPTED)} / {STEPS}", "accepted"),
                Query(f"({sum_rate(DRAFTED)} - {sum_rate(ACCEPTED)}) / {STEPS}", "wasted"),
            ),
            unit="suffix: nodes",
            decimals=1,
            is_stacked=True,
        ),
        Panel(
            kind="heatmap",
            title="Budget chosen",
            description="Nodes the scheduler allowed a request's tree: 0 is a plain step; otherwise the method's or "
            "the request's own number, or the server's most, where the price of a node limits the tree.",
            queries=buckets("gander_budget_nodes", METHOD),
            unit="none",
        ),
        Panel(
            kind="heatmap",
            title="Tree size",
            description="Nodes drafted for a request in a step, the root left out: what came of the budget.",
            queries=buckets("gander_tree_nodes", METHOD),
            unit="none",
        ),
    ),
)

CHOICES = Section(
    "Choices and time",
    (
        Panel(
            title="Requests by method and reason",
            description="Ended requests per second by the method that drafted last and why it did: requested by name, "
            "or as a fallback.",
            queries=(Query(sum_rate("gander_choices_total", METHOD, "method, choice"), "{{method}}, {{choice}}"),),
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="Seconds by phase of a step",
            description="Mean seconds of an engine step by phase. draft_model and draft make the trees, forward and "
            "sample verify them, commit and observe keep what was learned.",
            queries=(Query(f"{sum_rate('gander_phase_seconds_total', by='phase')} / scalar({STEPS})", "{{phase}}"),),
            unit="s",
            is_stacked=True,
        ),
        Panel(
            title="Requests the draft model gave up",
            description="Requests per second the draft model could do nothing more for, by reason; another method "
            "drafted on.",
            queries=(Query(sum_rate("gander_draft_refusals_total", by="reason"), "{{reason}}"),),
            unit="reqps",
        ),
    ),
)

SECTIONS = (NOW, SPEED, ACCEPTANCE, TREES, CHOICES)
