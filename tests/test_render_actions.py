"""Verdicts, advice, merges, ranges and host work in words: stated by hand, the same for every format."""

from __future__ import annotations

from dataclasses import replace

import pytest
import render_sample

from nsys_sync.model import Certainty, Dependency, DependencyKind, HostLine, HostWork, Location, Merge, Region, Site
from nsys_sync.render.actions import (
    causes_by_id,
    code_lines,
    host_line,
    host_work_sentences,
    how_often,
    merge_sentence,
    merge_sentences,
    redundant_sentence,
    redundant_sentences,
    region_sentences,
    safe_link,
    source_text,
    todos,
    verdict,
    verdict_sentence,
    verdicts_sentence,
    what,
)


@pytest.mark.parametrize(
    ("kind", "reason", "certainty", "label", "sentence"),
    [
        ("false", "", "certain", "can go", "Can go: first; second."),
        ("false", "logged only", "likely", "can go (likely)", "Can go (likely): logged only; first; second."),
        ("true", "control flow", "certain", "needed: control flow", "Needed for control flow: first; second."),
        ("true", "a shape", "likely", "needed: a shape (likely)", "Needed for a shape (likely): first; second."),
        ("true", "", "certain", "needed", "Needed: first; second."),
        ("explicit", "", "certain", "asked for", "Asked for: first; second."),
        ("unknown", "", "open", "not known", "Not known whether it can go: first; second."),
    ],
)
def test_verdicts(kind: DependencyKind, reason: str, certainty: Certainty, label: str, sentence: str) -> None:
    dependency = Dependency(kind, reason, certainty, ("first.", "second"))
    assert verdict(dependency) == label
    assert verdict_sentence(replace(_site(), dependency=dependency)) == sentence


def test_a_verdict_without_evidence() -> None:
    assert verdict_sentence(_site()) == "Not known whether it can go."
    assert verdict_sentence(replace(_site(), dependency=Dependency("false", "", "likely", ()))) == "Can go (likely)."


def test_the_stall_by_verdict() -> None:
    # 53,282,752 + 18,595,725; 14,419,919 + 685,741; 0; 10,644,425 ns
    assert verdicts_sentence(render_sample.gpu_bound()) == (
        "Of 97.6 ms stall in the sites: 71.9 ms can go (2 sites), 15.1 ms needed (2 sites), 0 ns asked for (1 site), "
        "10.6 ms not known (1 site)."
    )
    assert verdicts_sentence(render_sample.unexplained()) is None
    refused = render_sample.refused()
    dependency = Dependency("false", "", "certain", ())
    refused = replace(refused, sites=(replace(refused.sites[0], dependency=dependency), *refused.sites[1:]))
    assert verdicts_sentence(refused) == (
        "Of 122 ms time blocked in the sites: 120 ms can go (1 site), 2.00 ms not known (1 site)."
    )


def test_what_a_site_does() -> None:
    base = render_sample.gpu_bound()
    causes = causes_by_id(base)
    assert [what(site, causes) for site in base.sites] == [
        "one number is read: .item()",
        'copy from pageable memory: .to("cuda")',
        "one number is read: float(t)",
        "tensor is copied to the CPU (likely): .cpu()",
        "boolean mask as index: x[mask] (data-dependent shape)",
        "explicit synchronize: torch.cuda.synchronize()",
    ]
    assert what(_site(), causes) == ".item() (DtoH copy, pinned, then cudaStreamSynchronize)"


@pytest.mark.parametrize(
    ("calls", "steps", "with_calls", "said"),
    [
        (1, 20, 1, "once"),
        (40, 20, 20, "every step"),
        (4, 20, 3, "3 of 20 steps"),
        (4, 20, 0, "outside the steps"),
        (4, 1, 1, None),
        (4, None, 0, None),
        (1, None, 0, "once"),
    ],
)
def test_how_often_it_happens(calls: int, steps: int | None, with_calls: int, said: str | None) -> None:
    site = replace(_site(), calls=calls)
    assert site.per_step
    per_step = replace(site.per_step, steps=steps, steps_with_calls=with_calls) if steps else None
    assert how_often(replace(site, per_step=per_step)) == said


def test_the_worst_sites_share_the_advice_of_their_cause() -> None:
    first, second, third = todos(render_sample.gpu_bound())
    # The fourth has neither a verdict nor advice, the sixth costs nothing.
    assert [[rank for rank, _ in todo.sites] for todo in (first, second, third)] == [[1, 3], [2], [5]]
    assert [advice.id for advice in first.advice + first.further] == ["read-later", "read-seldom"]
    assert first.cause and first.cause.title == "one number is read"
    assert [advice.id for advice in second.advice + second.further] == ["pin-memory"]
    assert third.cause and third.cause.dynamic_shape


def test_advice_stands_in_full_once() -> None:
    base = render_sample.gpu_bound()
    upload = replace(base.sites[1], advice=("read-later", "pin-memory"))
    first, second = todos(replace(base, sites=(base.sites[0], upload)))
    assert [advice.id for advice in first.advice] == ["read-later"]
    assert second.advice == ()
    assert [advice.id for advice in second.further] == ["read-later", "pin-memory"]


def test_at_most_five_sites_get_a_part_of_their_own() -> None:
    many = render_sample.many(30)
    assert sum(len(todo.sites) for todo in todos(many)) == 5
    assert [rank for todo in todos(many, 2) for rank, _ in todo.sites] == [1, 2]
    assert todos(many, 0) == []
    assert todos(render_sample.unexplained()) == []


def test_waits_for_nothing() -> None:
    site = replace(_site(), calls=12)
    assert redundant_sentence(replace(site, redundant_calls=12)) == "12 of 12 waits found nothing to wait for: can go."
    assert redundant_sentence(replace(site, redundant_calls=9)) == (
        "9 of 12 waits found nothing to wait for: those can go."
    )
    assert redundant_sentence(replace(site, redundant_calls=0)) is None
    assert redundant_sentence(replace(site, redundant_calls=None)) is None
    assert redundant_sentences([replace(site, redundant_calls=12)] * 3, most=1) == [
        "read_loss gpu_bound.py:28: 12 of 12 waits found nothing to wait for: can go.",
        "2 more sites with redundant waits, in the JSON report.",
    ]


def test_reads_that_can_be_one() -> None:
    base = render_sample.gpu_bound()
    sites = {site.id: site for site in base.sites}
    how = "can be 1 (put the values together on the GPU, read once)"
    assert merge_sentence(Merge(("site0001",), 20, 60), sites) == (
        f"read_loss gpu_bound.py:28: these 3 reads {how}: 60 reads in 20 runs, of which 20 would be left."
    )
    assert merge_sentence(Merge(("site0001", "site0003", "site0001"), 2, 5), sites) == (
        "read_loss gpu_bound.py:28, clip gpu_bound.py:40: these reads (2.5 a run on average) "
        f"{how}: 5 reads in 2 runs, of which 2 would be left."
    )
    assert merge_sentence(Merge(("site0001", "left out"), 1, 2), sites) == (
        f"read_loss gpu_bound.py:28, 1 site not shown: these 2 reads {how}: 2 reads in 1 run, of which 1 would be left."
    )
    merges = (Merge(("left out",), 9, 99), Merge(("site0001",), 1, 2), Merge(("site0003",), 1, 4))
    said = merge_sentences(replace(base, merges=merges), most=1)
    assert said[0].startswith("clip gpu_bound.py:40: these 4 reads")
    assert said[1:] == ["1 more group of reads, in the JSON report."]


def test_syncs_inside_ranges() -> None:
    assert region_sentences(render_sample.gpu_bound().traces[0].regions) == [
        "step *: 200 syncs in 20 of 20 ranges, 190 of them after each thread's first (warm-up)",
        "warm-up: 5 syncs in 1 of 2 ranges, none after each thread's first (warm-up)",
        "sync-free: forward, optimizer",
    ]
    assert region_sentences((Region("epoch", 1, 1, 0, 1, ()),)) == ["epoch: 1 sync in 1 of 1 range"]
    assert region_sentences(()) == []
    crowd = tuple(Region(f"part {i}", 5, i, i, 1, ()) for i in range(1, 11))
    free = tuple(Region(f"free {i}", 5, 0, 0, 0, ()) for i in range(10))
    said = region_sentences(crowd + free, most=2)
    assert said[0].startswith("part 10: 10 syncs in 1 of 5 ranges")
    assert said[2] == "8 more ranges with syncs, in the JSON report."
    assert said[3].endswith("free 7 and 2 more")


def test_host_work_in_words() -> None:
    work = render_sample.host_work()
    intro, rest = host_work_sentences(work)
    assert intro == "What Python did in 142 ms of host-bound time, estimated from 123 samples, 1 per ms:"
    assert [host_line(line, work) for line in work.lines] == [
        "data loading: next_batch w/load.py:12 (57 of 123 samples)",
        "data loading: augment w/load.py:31 (40 of 123 samples, in randn numpy/random/mtrand.py:10)",
        "Python: main w/train.py:80 (26 of 123 samples)",
    ]
    assert rest == [
        "CUDA calls in the host-bound time (exact): cudaHostAlloc 31.2 ms over 12 calls, "
        "cuModuleLoadData 2.00 ms over 1 call.",
        "Hidden wait for the GPU, which no CUDA call shows: block_until_ready at fit w/fit.py:9, about 12.0 ms, "
        "estimated from 12 samples, 1 per ms.",
    ]
    rate = host_work_sentences(replace(work, sampling_period_ns=2_500_000))[0]
    assert rate and rate.endswith("estimated from 123 samples, 1 per 2.50 ms:")
    rate = host_work_sentences(replace(work, sampling_period_ns=None))[0]
    assert rate and rate.endswith("estimated from 123 samples (sampling period not known):")


def test_host_work_without_samples() -> None:
    work = HostWork(142_000_000, 0, None, (), "the capture has no Python samples.", (), ())
    assert host_work_sentences(work) == (
        "What Python did in 142 ms of host-bound time is not known: the capture has no Python samples.",
        [],
    )
    assert host_work_sentences(replace(work, host_bound_ns=0)) == (None, [])
    nowhere = HostLine(Location("thread 5", None, None, None), "Python", None, 1, 2)
    assert host_line(nowhere, replace(work, samples=1)) == "Python: thread 5 (1 of 1 sample)"


def test_code_keeps_its_lines_and_nothing_else() -> None:
    assert code_lines("\nfor x in y:\n    f(x)\x1b[2J\n") == ["for x in y:", r"    f(x)\x1b[2J"]
    assert code_lines("a\n" * 100, most=2) == ["a", "a", "…"]
    assert source_text(replace(_site(), source=None)) is None


@pytest.mark.parametrize(
    ("link", "safe"),
    [
        ("https://docs.pytorch.org/x.html", True),
        ("http://docs.pytorch.org/x.html", False),
        ("javascript:alert(1)", False),
        ("https://a b", False),
        ("https://evil\u202e.org", False),
        ("https://" + "x" * 5000, False),
    ],
)
def test_only_links_to_pages_are_links(link: str, safe: bool) -> None:
    assert safe_link(link) == (link if safe else None)


def _site() -> Site:
    return render_sample.make_site(1, "read_loss", 28, 53_282_752)
