"""The documentation site builds without warnings, and every code has its page."""

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ggml_py
import ggml_py.checks
import ggml_py.models
import ggml_py.trace
from ggml_py.trace import causes

REPO = Path(__file__).parents[2]
CAUSES = REPO / "docs" / "causes"
TABLE = (CAUSES / "README.md").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site's folder. Warnings are errors: `strict` in mkdocs.yml, but not with -q."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-d", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr + done.stdout
    return folder


def test_it_is_built_without_a_warning(site):
    assert (site / "index.html").exists()
    assert "Q4_0" in (site / "api" / "enums.html").read_text()
    assert "mul_mat" in (site / "api" / "tensors.html").read_text()
    assert "--swa-full" in (site / "verbs" / "plan.html").read_text()


def test_it_needs_no_network(site):
    """Scripts, styles and fonts come from the site itself."""
    for page in ("index.html", "api/scheduler.html"):
        text = (site / page).read_text()
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="([^"]+)"', text)
        assert loaded and not [url for url in loaded if url.startswith(("http:", "https:", "//"))]


# Texts on their backgrounds, by how readable they are. Large text needs less contrast.
CONTRASTS = """() => {
    const rgba = text => (text.match(/[\\d.]+/g) ?? []).map(Number);
    const over = ([r, g, b, a = 1], below) => [r, g, b].map((c, i) => a * c + (1 - a) * below[i]);
    const parents = e => e ? [...parents(e.parentElement), e] : [];
    const luminance = color => color.map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const found = new Map(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement, style = getComputedStyle(element);
        const seen = element.checkVisibility({ opacityProperty: true });
        if (!seen || !texts.currentNode.data.trim()) continue;
        let paper = [255, 255, 255], opacity = 1;
        for (const parent of parents(element)) {
            paper = over(rgba(getComputedStyle(parent).backgroundColor), paper);
            opacity *= getComputedStyle(parent).opacity;
        }
        const [r, g, b, a = 1] = rgba(style.color);
        const ink = over([r, g, b, a * opacity], paper);
        const [dark, light] = [ink, paper].map(luminance).sort((x, y) => x - y);
        const size = parseFloat(style.fontSize) * (style.fontWeight >= 700 ? 9 / 7 : 1);
        const ratio = (light + 0.05) / (dark + 0.05) * (size >= 24 ? 1.5 : 1);
        const key = `${element.tagName} ${element.className}: ${style.color} on ${paper}`;
        found.set(key, Math.min(ratio, found.get(key) ?? 21));
    }
    return [...found];
}"""
KINDS = ("index", "SCHEDULER", "CLI", "COMING_FROM", "verbs/plan", "api/scheduler", "advice/GP104")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", KINDS)
def test_text_is_readable(site, browser, name, scheme):
    """Contrast of WCAG's level AA: 4.5, for large text 3."""
    page = browser.new_page(color_scheme=scheme)
    page.goto((site / f"{name}.html").as_uri())
    found = page.evaluate(CONTRASTS)
    page.evaluate("document.querySelector('h1').style.opacity = 0.3")
    faint = page.evaluate(CONTRASTS)
    page.close()
    assert [row for row in found if row[1] < 4.5] == []
    assert len(found) > 10 and [row for row in faint if row[1] < 4.5]


def test_keys_reach_everything_on_the_front_page(site, browser):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    links = page.eval_on_selector_all("article a", "all => all.map(a => a.getAttribute('href'))")
    assert {"plan.html", "LOGS.html", "PYTHON.html", "cookbook/op_on_cpu.html"} <= set(links)
    reached = []
    for _ in range(100):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("""() => {
            const element = document.activeElement, style = getComputedStyle(element);
            return [element.getAttribute('href') ?? element.id, style.outlineStyle];
        }"""))
    assert reached[0][0] == "#why-is-my-model-slow"  # past the navigation
    assert set(links) | {"__palette_0"} <= {name for name, _ in reached}
    assert all(outline != "none" for name, outline in reached if name in links)
    page.focus("#__palette_0")
    page.keyboard.press("Enter")
    scheme = page.evaluate("document.body.dataset.mdColorScheme")
    page.close()
    assert scheme == "slate"


def test_the_live_plan_is_a_plan(site, browser):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.click("a[href='plan.html'] >> nth=0")
    shown = page.inner_text("#glance").lower()
    page.close()
    assert "flash_attn_ext on cpu" in " ".join(shown.split())


@pytest.fixture(scope="module")
def documented(site):
    """The names on the API's pages."""
    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    return {name.rpartition(".")[2] for name in re.findall(r'id="(ggml_py[\w.]*)"', text)}


def public():
    """The classes and functions of the modules that users import from, by name."""
    found = {name: getattr(ggml_py, name) for name in ggml_py._PUBLIC}
    found |= {name: getattr(ggml_py.trace, name) for name in ggml_py.trace._PUBLIC}
    found |= {name: getattr(ggml_py.checks, name) for name in ggml_py.checks.__all__}
    found |= vars(ggml_py.models)
    return {name: o for name, o in found.items() if name[0] != "_"
            and (inspect.isclass(o) or inspect.isfunction(o))
            and o.__module__.startswith("ggml_py")}  # fmt: skip


def test_every_public_name_is_in_the_api(documented):
    there = public().keys()
    assert {"Scheduler", "Sweep", "assert_pins", "load", "ClosedError"} <= there
    assert there <= documented, sorted(there - documented)


def returned(thing):
    """The return annotations of a function, or of a class's attributes and methods."""
    for of in getattr(thing, "__mro__", (thing,)):
        if not of.__module__.startswith("ggml_py"):
            continue
        members = {of.__name__: of} if inspect.isfunction(of) else vars(of)
        if inspect.isclass(of):
            yield from (a for n, a in inspect.get_annotations(of).items() if n[0] != "_")
        for name, member in members.items():
            member = getattr(member, "fget", None) or getattr(member, "__func__", member)
            function = getattr(member, "func", member)  # of a cached property
            if not name.startswith("_") and inspect.isfunction(function):
                yield function.__annotations__.get("return", "")


def test_so_is_every_class_that_they_give_back(documented):
    """Every class that a user can get has its page, however many calls it takes to get it."""
    by_name = {}
    for module in pkgutil.walk_packages(ggml_py.__path__, "ggml_py."):
        if not re.search(r"native|__main__|cli|pytest_plugin|\.snapshot", module.name):
            for name, o in vars(importlib.import_module(module.name)).items():
                if inspect.isclass(o) and o.__module__ == module.name and name[0] != "_":
                    by_name.setdefault(name, []).append(o)
    left, seen = list(public().values()), {}
    while left:
        thing = left.pop()
        for annotation in returned(thing):
            for name in re.findall(r"\b[A-Z]\w*", str(annotation)):
                if name not in seen and name in by_name:
                    seen[name] = thing.__name__
                    left += by_name[name]
    assert {"WhyNot", "Finding", "Explanation", "Split", "TensorRecord"} <= seen.keys()
    del seen["Shape"]  # of `Sweep` it is an alias
    assert seen.keys() <= documented, {n: by for n, by in seen.items() if n not in documented}


def test_every_cause_has_a_page():
    codes = {row.code for row in causes.CODES} - {"1.vsrc"}
    assert {p.stem for p in CAUSES.glob("*.md")} == {*codes, "README"}
    assert set(re.findall(r"\(([\w.]+)\.md\)", TABLE)) == codes


@pytest.mark.parametrize("page", sorted(CAUSES.glob("[0-9u]*.md")), ids=lambda p: p.stem)
def test_a_causes_page_shows_it(page):
    """Its example has the cause that the page is about."""
    shown = "".join(re.findall(r"^```text\n(.*?)^```", page.read_text(), re.M | re.S))
    assert page.stem.removesuffix(".wgt") + (".wgt0" if page.stem == "1.wgt" else "") in shown
    assert "**If it is not what you want.**" in page.read_text()
