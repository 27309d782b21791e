"""Renders the comparison of peers as Markdown. Pure.

Invariant: a ratio is the median over rounds of the ratio of two answers to the same prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from decoding.bench.peers.perplexity import Score
from decoding.bench.peers.rounds import OURS, PLAIN, Row, Setting, agreement, ratio
from decoding.bench.tables.table import table

PLAIN_COLUMNS = (
    "weights",
    "peer",
    "prefill, tokens/s",
    "decode, tokens/s",
    "ours ÷ it, prefill",
    "decode",
    "same",
)
DRAFTED_COLUMNS = (
    "workload",
    "peer",
    "drafting",
    "tokens/s",
    "decode",
    "× its plain",
    "our best ÷",
    "same",
)


def render_plain(settings: Sequence[Setting]) -> str:
    """A row for each peer and kind of weights, the missing peers, and the phases of our steps."""
    rows = [_plain_row(setting, row) for setting in settings for row in setting.rows]
    versions = _versions(settings)
    return "\n\n".join([versions, table(PLAIN_COLUMNS, rows), *_sentences(settings), *_phases(settings)])


def render_drafted(settings: Sequence[Setting]) -> str:
    """A row for each way of drafting of each peer, and for each workload our best row against the others' best."""
    rows = [_drafted_row(setting, row) for setting in settings for row in setting.rows]
    summary = [sentence for setting in settings if (sentence := _best_against_best(setting))]
    differ, compared = (sum(counts) for counts in zip(*map(num_differing, settings), strict=True))
    same = [f"Of {compared} drafted replies of ours {differ} have other tokens than the plain one."] if compared else []
    told = [*summary, *same, *_sentences(settings), *_phases(settings)]
    return "\n\n".join([_versions(settings), table(DRAFTED_COLUMNS, rows), *told])


def render_perplexity(scores: Sequence[Score], left_out: Sequence[str]) -> str:
    """A row for each peer, with our perplexity over its."""
    ours = next((score for score in scores if score.peer == OURS), None)
    rows = []
    for score in scores:
        compared = f"{ours.perplexity / score.perplexity:.4f}" if ours and score is not ours else ""
        rows.append([f"{score.peer} {score.version}", f"{score.num_tokens}", f"{score.perplexity:.4f}", compared])
    told = ["\n".join(f"- {sentence}" for sentence in left_out)] if left_out else []
    return "\n\n".join([table(("peer", "tokens scored", "perplexity", "ours ÷ it"), rows), *told])


def num_differing(setting: Setting) -> tuple[int, int]:
    """How many of our drafted replies are not our plain one, and how many there are."""
    plain, drafted = setting.find(OURS), [row for row in _of_ours(setting) if row.drafting != PLAIN]
    if plain is None:
        return 0, 0
    pairs = [pair for row in drafted for pair in zip(row.answers, plain.answers, strict=True)]
    return sum(answer.tokens != expected.tokens for answer, expected in pairs), len(pairs)


def best(rows: Sequence[Row]) -> Row | None:
    """The row with the highest median rate of whole replies."""
    return max(rows, key=lambda row: median(row.whole_rates), default=None)


def _plain_row(setting: Setting, row: Row) -> list[str]:
    ours = setting.find(OURS)
    compared = ["", "", ""]
    if ours is not None and row is not ours:
        compared = [
            f"{ratio(ours.prefill_rates, row.prefill_rates):.2f}",
            f"{ratio(ours.decode_rates, row.decode_rates):.2f}",
            f"{agreement(row, ours):.0%}",
        ]
    rates = [f"{median(row.prefill_rates):.0f}", f"{median(row.decode_rates):.1f}"]
    return [setting.name, row.peer, *rates, *compared]


def _drafted_row(setting: Setting, row: Row) -> list[str]:
    plain, expected = setting.find(row.peer), setting.find(OURS)
    ours = best(_of_ours(setting))
    return [
        setting.name,
        row.peer,
        row.drafting,
        f"{median(row.whole_rates):.0f}",
        f"{median(row.decode_rates):.0f}",
        f"{ratio(row.whole_rates, plain.whole_rates):.2f}" if plain and row.drafting != PLAIN else "",
        f"{ratio(ours.whole_rates, row.whole_rates):.2f}" if ours and row.peer != OURS else "",
        f"{agreement(row, expected):.0%}" if expected and row is not expected else "",
    ]


def _of_ours(setting: Setting) -> list[Row]:
    return [row for row in setting.rows if row.peer == OURS]


def _best_against_best(setting: Setting) -> str | None:
    ours, theirs = best(_of_ours(setting)), best([row for row in setting.rows if row.peer != OURS])
    if ours is None or theirs is None:
        return None
    found = ratio(ours.whole_rates, theirs.whole_rates)
    return (
        f"{setting.name}: ours with {ours.drafting} runs {found:.2f} times the best peer's, "
        f"{theirs.peer} with {theirs.drafting}."
    )


def _versions(settings: Sequence[Setting]) -> str:
    found = dict.fromkeys(f"{row.peer} {row.version}" for setting in settings for row in setting.rows)
    return f"Measured: {', '.join(found)}." if found else "Nobody could be measured."


def _sentences(settings: Sequence[Setting]) -> list[str]:
    left_out = [f"- {setting.name}: {sentence}" for setting in settings for sentence in setting.left_out]
    others = [share for setting in settings for share in setting.others]
    told = (
        []
        if not others
        else [
            f"Other work took {median(others):.0%} of the processor's time in the median of the answers, "
            f"{max(others):.0%} at the most."
        ]
    )
    return ["\n".join(left_out), *told] if left_out else told


def _phases(settings: Sequence[Setting]) -> list[str]:
    """The phases of our decoding steps: milliseconds a step, the median over rounds."""
    rows, names = [], list[str]()
    for setting in settings:
        for row in _of_ours(setting):
            told = [answer for answer in row.answers if answer.steps]
            if not told:
                continue
            names = list(told[0].phase_seconds)
            cells = [median(1000 * each.phase_seconds[name] / each.steps for each in told) for name in names]
            tau = median((len(each.tokens) - 1) / each.steps for each in told)
            rows.append([f"{setting.name}, {row.drafting}", f"{tau:.2f}", *(f"{cell:.2f}" for cell in cells)])
    if not rows:
        return []
    return ["Ours, milliseconds of a decoding step by phase:", table(("setting", "tokens a step", *names), rows)]
