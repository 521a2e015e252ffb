from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import samples

from loganalyze.report import to_svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", samples.ALL)
def test_the_figure_is_one_well_formed_drawing(name: str) -> None:
    text = to_svg.render(samples.ALL[name]())
    root = ElementTree.fromstring(text)
    assert root.tag == SVG + "svg"
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= {
        *("svg", "title", "style", "rect", "text", "path"),
    }
    assert not [k for e in root.iter() for k in e.attrib if k.startswith("on") or "href" in k]
    assert "url(" not in text
    assert len(text) < 80_000


def test_it_shows_the_verdict_the_panels_and_the_episodes() -> None:
    root = ElementTree.fromstring(to_svg.render(samples.founding()))
    said = [e.text for e in root.iter(SVG + "text")]
    assert "■ saturated" in said
    assert "KV pool usage" in said
    assert "■ KV001 kv-saturation" in said
    assert any("37 fit the KV pool" in text for text in said if text)
    assert any("╌ 0.90" in text for text in said if text)
    assert (root.get("width"), root.find(SVG + "title") is not None) == ("960", True)


def test_ranks_are_named() -> None:
    root = ElementTree.fromstring(to_svg.render(samples.dp8()))
    said = [e.text for e in root.iter(SVG + "text")]
    assert [t for t in said if t and t.startswith("DP") and "TP0" in t] == [
        f"DP{i} TP0" for i in range(8)
    ]


def test_a_gap_is_a_new_stroke() -> None:
    root = ElementTree.fromstring(to_svg.render(samples.restarts()))
    means = [e.get("d", "") for e in root.iter(SVG + "path") if e.get("class") == "mean s0"]
    strokes = [d.count("M") for d in means]
    assert strokes[:4] == [1, 1, 2, 1]  # usage, one curve a session; the third has a hole


def test_all_values_stay_inside_their_panel() -> None:
    root = ElementTree.fromstring(to_svg.render(samples.founding()))
    for e in root.iter(SVG + "path"):
        if (e.get("class") or "").startswith("mean"):
            for part in re.findall(r"M(-?\d+) (-?\d+)l([^M]*)", e.get("d", "")):
                x, y = int(part[0]), int(part[1])
                moves = [int(v) for v in re.findall(r"-?\d+", part[2])]
                for dx, dy in zip(moves[::2], moves[1::2], strict=True):
                    x, y = x + dx, y + dy
                    assert 0 <= x <= 1_000
                    assert 0 <= y <= 200


def test_the_same_report_gives_the_same_figure() -> None:
    assert to_svg.render(samples.founding()) == to_svg.render(samples.founding())


def test_every_bar_has_a_colour_of_its_own() -> None:
    text = to_svg.render(samples.founding())
    bars = {e.get("class") for e in ElementTree.fromstring(text).iter(SVG + "path")}
    for kind in ("critical", "warning", "info", "event"):
        assert kind in bars
        assert f".plot .{kind}{{fill:#" in text


def test_a_long_headline_is_wrapped() -> None:
    root = ElementTree.fromstring(to_svg.render(samples.founding()))
    said = [e.text or "" for e in root if e.tag == SVG + "text"]
    assert " ".join(said[1:]) == samples.founding().verdict.headline
    assert max(map(len, said)) <= 118


def test_a_png_is_the_same_picture_at_twice_the_size() -> None:
    pytest.importorskip("resvg_py", reason="resvg-py is not installed: pip install '.[png]'")
    report = samples.excerpt()
    picture = to_svg.render_png(report)
    assert picture.startswith(b"\x89PNG")
    width, height = (int.from_bytes(picture[i : i + 4], "big") for i in (16, 20))
    root = ElementTree.fromstring(to_svg.render(report))
    assert (width, height) == tuple(2 * int(root.get(k, "")) for k in ("width", "height"))
    assert to_svg.render_png(report) == picture


def test_numbers_and_levels_stand_beside_the_values_and_not_on_them() -> None:
    report = samples.founding()
    said = list(ElementTree.fromstring(to_svg.render(report)).iter(SVG + "text"))
    at = {"".join(e.itertext()): e for e in said}
    # The numbers of an axis end left of it, and the names of levels stand at the panel's title.
    assert {at[n].get("x") for n in ("1.00", "0.50", "160")} == {"-5"}
    (usage,) = [text for text in at if text.startswith("╌ 0.90 · peak ")]
    (running,) = [text for text in at if " fit the KV pool · peak " in text]
    for title, note in (("KV pool usage", usage), ("Running requests", running)):
        assert at[title].get("y") == at[note].get("y")
        assert (at[title].get("x"), at[note].get("x")) == ("0", "100%")
    # The panels begin below what their restarts are called.
    said = list(ElementTree.fromstring(to_svg.render(samples.restarts())).iter(SVG + "text"))
    top = min(float(e.get("y", "")) for e in said if e.text == "KV pool usage")
    names = [float(e.get("y", "")) for e in said if (e.text or "").startswith("restart")]
    assert names
    assert max(names) < top - 12
