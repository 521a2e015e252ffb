"""The page in a real browser: Debian's Chromium, driven by Playwright, without a network."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import samples

from loganalyze.compare import compare
from loganalyze.report import compare_html, to_html

REQUIRED = os.environ.get("LOGANALYZE_REQUIRE_BROWSER") == "1"
CHROMIUM = shutil.which("chromium")
#: Nothing that would reach out by itself.
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}

if not REQUIRED:
    if CHROMIUM is None:
        pytest.skip(
            "no chromium on this machine (apt-get install chromium); "
            "LOGANALYZE_REQUIRE_BROWSER=1 makes this an error",
            allow_module_level=True,
        )
    pytest.importorskip("playwright", reason="Playwright's Python package is not installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "LOGANALYZE_REQUIRE_BROWSER=1 and no chromium"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    out = {}
    for name, make in samples.ALL.items():
        out[name] = folder / f"{name}.html"
        out[name].write_text(to_html.render(make()), encoding="utf-8")
    return out


class Opened:
    """A page that was opened, with everything it said and asked for meanwhile.

    Whatever a test does, at its end the page must have said nothing and asked for nothing.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.console: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))


Open = Callable[..., Opened]


@pytest.fixture
def open_page(browser: Any, files: dict[str, Path]) -> Iterator[Open]:
    pages: list[Opened] = []

    def run(name: str, *, ready: bool = True, **options: Any) -> Opened:
        context = browser.new_context(**{"viewport": DESKTOP, "offline": True, **options})
        opened = Opened(context.new_page())
        pages.append(opened)
        opened.page.goto(files[name].as_uri())
        if ready:
            opened.page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
        return opened

    yield run
    for opened in pages:
        opened.page.context.close()
        assert opened.console == [], "the page wrote to the console"
        # `blob` is the page's own picture on its way to a file.
        assert {url.split(":")[0] for url in opened.requests} <= {"file", "blob"}


def x_range(page: Any) -> list[str]:
    """Return both ends of the shown stretch, to the second."""
    found: list[str] = page.evaluate(
        "document.getElementById('live-timeline')._fullLayout.xaxis.range.map(String)"
    )
    return [end.replace(" ", "T")[:19] for end in found]


@pytest.mark.parametrize("name", ["founding", "healthy"])
def test_it_opens_offline_without_an_error_or_a_request(
    open_page: Open, files: dict[str, Path], name: str
) -> None:
    opened = open_page(name)
    opened.page.mouse.move(640, 600)
    opened.page.wait_for_timeout(200)
    assert opened.console == []
    assert opened.requests == [files[name].as_uri()]


def test_an_excerpt_without_a_timeline_opens_too(open_page: Open, files: dict[str, Path]) -> None:
    opened = open_page("excerpt", ready=False)
    assert opened.console == []
    assert opened.requests == [files["excerpt"].as_uri()]
    assert "one line cannot say how long" in opened.page.inner_text("h1").lower()


def test_the_charts_are_drawn_and_take_the_place_of_the_still_ones(open_page: Open) -> None:
    page = open_page("founding").page
    curves = page.locator("#live-timeline .scatterlayer .trace path.js-line")
    assert curves.count() >= 8
    lengths = curves.evaluate_all("paths => paths.map(p => p.getTotalLength())")
    assert max(lengths) > 500
    assert page.locator("#live-timeline .rangeslider-container").count() == 1
    assert page.locator("#live-phase .scatterlayer .points path").count() > 1_000
    assert page.locator("svg.still").first.is_hidden()
    assert page.locator("#live-timeline canvas").count() == 0  # SVG: it prints


def test_a_gap_is_drawn_as_a_gap(open_page: Open) -> None:
    page = open_page("restarts").page
    nulls = page.evaluate(
        """() => document.getElementById('live-timeline').data
          .filter((t) => t.yaxis === 'y2' && t.mode === 'lines' && t.hoverinfo !== 'skip')
          .map((t) => t.y.slice(0, -1).filter((v) => v === null).length)"""
    )
    assert nulls == [0, 0, 1, 0]
    assert (
        page.locator("#live-timeline .annotation-text", has_text="restart after crash").count()
        == 3
    )


#: Texts that overlap another one, or leave the width of their figure.
LABELS = """(find) => {
  const boxes = [...document.querySelectorAll(find)].filter((e) => e.textContent)
    .map((e) => [e.textContent, e.getBoundingClientRect()]).filter(([, b]) => b.width);
  const page = document.documentElement.clientWidth;
  const out = boxes.filter(([, b]) => b.left < -0.5 || b.right > page + 0.5).map(([t]) => t);
  boxes.forEach(([t, a], i) => boxes.slice(i + 1).forEach(([u, b]) => {
    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (x > 1 && y > 3) out.push(`${t} / ${u}`);
  }));
  return out;
}"""


@pytest.mark.parametrize(
    ("name", "viewport"),
    [("founding", PHONE), ("crowded", DESKTOP), ("restarts", PHONE), ("dp8", DESKTOP)],
    ids=["founding-phone", "crowded-desktop", "restarts-phone", "dp8-desktop"],
)
def test_no_label_lies_on_another_or_leaves_the_figure(
    open_page: Open, name: str, viewport: Any
) -> None:
    page = open_page(name, viewport=viewport).page
    assert (
        page.evaluate(LABELS, "#live-timeline .annotation-text, #live-phase .annotation-text")
        == []
    )
    still = open_page(name, ready=False, viewport=viewport, java_script_enabled=False).page
    assert still.evaluate(LABELS, "svg.still text") == []


def test_a_click_on_a_finding_zooms_to_its_episode_and_back(open_page: Open) -> None:
    page = open_page("founding").page
    whole = x_range(page)
    row = page.locator("#finding-1 tr[data-finding]").first
    assert "11:35:00" in row.inner_text()
    row.get_by_role("button").click()
    assert x_range(page) == ["2026-02-24T11:34:20", "2026-02-24T11:37:00"]
    assert page.locator("#timeline").bounding_box()["y"] < 200
    page.get_by_role("button", name="Whole log").click()
    assert x_range(page) == whole


def test_dragging_zooms_all_panels_at_once(open_page: Open) -> None:
    page = open_page("founding").page
    before = x_range(page)
    plot = page.locator("#live-timeline .nsewdrag").nth(1)
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 30, steps=5)
    page.mouse.up()
    after = x_range(page)
    assert before[0] < after[0] < after[1] < before[1]
    axes = page.evaluate(
        "document.getElementById('live-timeline').data.map((t) => t.xaxis || 'x')"
    )
    assert set(axes) == {"x"}


def test_hovering_names_the_value_and_the_line(open_page: Open) -> None:
    page = open_page("founding").page
    plot = page.locator("#live-timeline .nsewdrag").nth(1)
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = page.locator("#live-timeline .hoverlayer .legend").text_content()
    assert re.search(r"KV pool : 0\.\d\d \(0\.\d\d to [01]\.\d\d\), near line [\d,]+", label)
    assert "throughput" in label
    assert "fitted model" in label


def test_ranks_can_be_switched_off(open_page: Open) -> None:
    page = open_page("dp8").page
    drawn = """document.getElementById('live-timeline').data
      .filter((t) => t.meta.panel === 'usage').length"""
    assert page.evaluate(drawn) == 8
    button = page.get_by_role("button", name="DP3 TP0")
    assert button.get_attribute("aria-pressed") == "true"
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert page.evaluate(drawn) == 7
    button.press("Enter")
    assert page.evaluate(drawn) == 8


def test_of_many_ranks_each_can_be_switched_on(open_page: Open) -> None:
    page = open_page("heavy").page
    buttons = page.locator("#legend button")
    assert buttons.count() == 48
    pressed = page.locator("#legend button[aria-pressed=true]")
    assert pressed.count() == 8
    drawn = """[...new Set(document.getElementById('live-timeline').data
      .filter((t) => t.meta.panel === 'usage' && t.meta.line >= 0).map((t) => t.meta.line))]"""
    assert len(page.evaluate(drawn)) == 8
    name = page.locator("#legend button[aria-pressed=false]").first.inner_text()
    page.get_by_role("button", name=name, exact=True).click()
    assert len(page.evaluate(drawn)) == 9


def test_a_click_on_an_episode_leads_to_its_finding(open_page: Open) -> None:
    page = open_page("founding").page
    box = page.locator("#live-timeline .nsewdrag").first.bounding_box()
    page.locator("#live-timeline").scroll_into_view_if_needed()
    box = page.locator("#live-timeline .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 6)
    page.wait_for_timeout(300)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 6)
    page.wait_for_timeout(1_500)
    assert page.locator("#finding-0").bounding_box()["y"] < 300


def test_it_is_complete_without_script(open_page: Open) -> None:
    opened = open_page("founding", ready=False, java_script_enabled=False)
    page = opened.page
    assert page.locator("svg.still").count() == 2
    assert page.locator("svg.still").first.is_visible()
    assert page.locator("#live-timeline").is_hidden()
    for text in ("Saturated", "KV004", "What was checked", "SHA-256", "159,277 tokens a rank"):
        assert page.get_by_text(text).locator("visible=true").count()
    assert page.locator("button").count() == 0


def test_dark_and_light_follow_the_reader(open_page: Open) -> None:
    page = open_page("founding", color_scheme="light").page
    now = """[getComputedStyle(document.body).backgroundColor,
      document.getElementById('live-timeline').layout.font.color]"""
    assert page.evaluate(now) == ["rgb(255, 255, 255)", "#1b2430"]
    page.emulate_media(color_scheme="dark")
    for _ in range(100):  # the policy forbids Playwright's own way to wait for a value
        if page.evaluate(now)[1] == "#e6eaef":
            break
        page.wait_for_timeout(200)
    assert page.evaluate(now) == ["rgb(17, 22, 29)", "#e6eaef"]


def test_print_shows_the_still_figures_and_every_detail(open_page: Open) -> None:
    page = open_page("founding", color_scheme="dark").page
    assert page.locator("#short").is_hidden()
    page.emulate_media(media="print")
    assert page.locator("#short").is_visible()
    assert "KV001" in page.locator("#short").inner_text()
    assert page.locator("svg.still").first.is_visible()
    assert page.locator("#live-timeline").is_hidden()
    assert page.locator("nav").is_hidden()
    assert page.locator("button.zoom").first.is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    folded = page.evaluate(
        """[...document.querySelectorAll('details:not([open]):not(.as-numbers)')]
          .map((d) => d.lastElementChild.getBoundingClientRect().height)"""
    )
    assert len(folded) >= 4  # findings of severity info, arguments, kinds of lines, arithmetic
    assert min(folded) > 10


@pytest.mark.parametrize(
    ("name", "script"),
    [
        *((n, True) for n in ("dp8", "hostile")),
        *((n, False) for n in ("founding", "restarts", "heavy")),
    ],
)
def test_a_phone_never_scrolls_sideways(open_page: Open, name: str, script: bool) -> None:
    ready = script and name != "excerpt"
    page = open_page(name, ready=ready, viewport=PHONE, java_script_enabled=script).page
    metrics = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert metrics == [360, 360]
    if ready:
        assert page.locator("#live-timeline .main-svg").first.bounding_box()["width"] <= 360


@pytest.mark.parametrize("width", [360, 600, 768, 961, 1280, 1920])
def test_no_table_of_a_finding_is_cut(open_page: Open, width: int) -> None:
    viewport = {"width": width, "height": 900}
    page = open_page("founding", ready=False, viewport=viewport, java_script_enabled=False).page
    cut = page.evaluate(
        """[...document.querySelectorAll('#findings .scroll')]
          .filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth).map((e) => e.innerText)"""
    )
    assert cut == []


def test_hostile_text_does_nothing(open_page: Open) -> None:
    opened = open_page("hostile")
    page = opened.page
    assert page.evaluate("window.pwned") is None
    assert (
        page.evaluate("document.querySelectorAll('main img, main script, main style').length") == 0
    )
    assert page.locator("a[href^=javascript]").count() == 0
    assert page.evaluate("[...document.querySelectorAll('svg a')].length") == 0
    assert page.locator("h1").is_visible()
    assert opened.console == []


def test_the_policy_stops_what_is_not_ours(open_page: Open) -> None:
    opened = open_page("founding")
    opened.page.evaluate(
        """() => {
          const script = document.createElement('script');
          script.textContent = 'window.pwned = 1';
          document.body.append(script);
          const picture = document.createElement('img');
          picture.src = 'http://127.0.0.1:9/x.png';
          document.body.append(picture);
        }"""
    )
    opened.page.wait_for_timeout(200)
    assert opened.page.evaluate("window.pwned") is None
    assert len([line for line in opened.console if "Content Security Policy" in line]) == 2
    opened.console.clear()
    opened.requests.clear()


def test_a_failing_chart_leaves_the_still_figure(browser: Any, tmp_path: Path) -> None:
    text = to_html.render(replace(samples.founding(), plan=None))
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(path.as_uri())
    page.wait_for_timeout(300)
    assert page.locator("svg.still").first.is_visible()
    assert page.locator("#live-timeline").is_hidden()
    context.close()


def test_the_picture_can_be_saved(open_page: Open, tmp_path: Path) -> None:
    page = open_page("founding").page
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as PNG").click()
    download.value.save_as(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "scheme", "viewport"),
    [
        ("founding", "light", DESKTOP),
        ("founding", "dark", PHONE),
        ("dp8", "light", PHONE),
        ("restarts", "dark", DESKTOP),
        ("hostile", "light", DESKTOP),
        ("excerpt", "dark", DESKTOP),
    ],
)
def test_axe_finds_nothing(open_page: Open, name: str, scheme: str, viewport: Any) -> None:
    if not REQUIRED:
        pytest.importorskip("axe_playwright_python", reason="axe-core is not installed")
    from axe_playwright_python.sync_playwright import Axe

    # The policy would stop axe itself, so it is off in this test alone.
    options = {"color_scheme": scheme, "viewport": viewport, "bypass_csp": True}
    page = open_page(name, ready=name != "excerpt", **options).page
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    found = Axe().run(page).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"]) for v in found] == []


def test_the_keyboard_reaches_the_findings_and_the_zoom(open_page: Open) -> None:
    page = open_page("founding").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the findings"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#findings"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "zoom"


def test_a_comparison_is_read_on_a_phone_without_broken_words(
    browser: Any, tmp_path: Path
) -> None:
    logs = Path(__file__).parents[2] / "sample_logs"
    found = compare(str(logs / "healthy.log"), str(logs / "running_cap.log"))
    path = tmp_path / "compare.html"
    path.write_text(compare_html.render(found), encoding="utf-8")
    context = browser.new_context(viewport=PHONE, java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    squeezed = page.evaluate(
        """[...document.querySelectorAll('tbody th, tbody td')]
          .filter((e) => e.textContent.trim().length > 9)
          .filter((e) => e.getBoundingClientRect().width > 1)
          .filter((e) => e.getBoundingClientRect().width < 60).map((e) => e.textContent)"""
    )
    assert squeezed == []
    assert page.locator(".pairs td[data-label=Before]").first.is_visible()
    context.close()
