"""The forms of a comparison: nothing hostile gets through, nothing is missing, no network."""

import html
import re
from dataclasses import replace

import pytest

from loganalyze.compare import compare
from loganalyze.model import Setting, Size
from loganalyze.report import (
    compare_html,
    compare_json,
    compare_markdown,
    compare_text,
    compare_words,
)

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e`|@all"


@pytest.fixture(scope="module")
def found(seeds_small, seeds):
    return compare(seeds_small, seeds, command="loganalyze compare a b")


@pytest.fixture(scope="module")
def hostile(found):
    (pair,) = found.pairs
    side = replace(pair.after, name=HOSTILE, notes=[HOSTILE])
    settings = [Setting("mem_fraction_static", HOSTILE, HOSTILE, 1, 1)]
    return replace(found, pairs=[replace(pair, after=side, settings=settings, notes=[HOSTILE])])


def test_the_page_needs_no_network_and_no_script(found):
    page = compare_html.render(found)
    assert "<script" not in page
    assert not re.findall(r"(?:src|href)=[\"'](?!#)", page)
    assert "default-src 'none'" in html.unescape(page)
    assert len(page) < 300_000


def test_the_page_shows_both_runs_from_their_start(found):
    page = compare_html.render(found)
    assert "before: seeds_replay" in page
    assert "after: seeds_replay" in page
    assert ">00:10<" in page  # ten minutes after the start of either
    assert ">11:40<" not in page  # the clock of the logs


@pytest.mark.parametrize(
    "render", [compare_html.render, compare_markdown.render, compare_text.render]
)
def test_every_form_has_what_was_changed_and_what_it_did(found, render):
    said = re.sub(r"<[^>]+>", " ", render(found))
    assert "--mem-fraction-static" in said
    assert "116,171" in said
    assert "159,277" in said
    assert "+37.1%" in said
    assert "better" in said.lower()
    assert "warm-up" in said
    for label in ("throughput at equal load", "cache hit rate", "rate per request", "saturated"):
        assert label in said


def test_hostile_text_stays_text(hostile):
    page = compare_html.render(hostile)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    for text in (page, compare_markdown.render(hostile), compare_text.render(hostile)):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "@all" not in re.sub(r"`[^`]*`", "", compare_markdown.render(hostile))
    assert compare_json.dumps(hostile).isascii()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(found, width):
    assert max(map(len, compare_text.render(found, width=width).splitlines())) <= width


def test_colour_only_on_demand(found):
    assert "\x1b[" not in compare_text.render(found)
    assert "\x1b[1;32m" in compare_text.render(found, color=True)


def test_markdown_is_short_enough_for_a_ticket(found):
    assert len(compare_markdown.render(found).splitlines()) < 60


def test_a_unit_stands_by_a_number():
    gone = Size("host pool", "GB", 48.0, None, None)
    assert compare_words.size(gone)[:2] == ("48 GB", "not in the log")
    both = Size("KV capacity", "tokens", 100_000, 110_000, 1.1)
    assert compare_words.size(both) == ("100,000", "110,000 tokens", "+10.0%")
