"""The site's page that opens files (docs/open), in Chromium: it reads them with Pyodide, and asks
for nothing but its own files."""

import time

import pytest

import ggml_py as ggml

from ..support import graphs, open_page
from ..support.cli_runs import fails, ok
from ..support.own_records import recorded
from ..support.page_driver import until

pytestmark = [
    pytest.mark.thorough("browser"),
    pytest.mark.skipif(not open_page.PYODIDE.is_dir(), reason="Pyodide: `make pyodide` first"),
]
_SECONDS = 60  # until Python has started, on busy cores


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with open_page.served(tmp_path_factory.mktemp("site") / "open") as server:
        yield server


@pytest.fixture(scope="module")
def page(browser, served):
    """The page, loaded. Its server has ended, so whatever it does then it does alone."""
    address, wrong = f"http://127.0.0.1:{served.server_port}/", []
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(10_000)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.on("request", lambda r: r.url.startswith((address, "blob:")) or wrong.append(r.url))
    page.goto(f"{address}index.html")
    seen, longest, end = [], 0.0, time.monotonic() + _SECONDS
    while not page.inner_text("#state").startswith("Ready"):
        assert time.monotonic() < end and not page.text_content("#error"), wrong
        before = time.monotonic()
        seen.append(page.evaluate("document.getElementById('loading')?.value ?? 1"))
        longest = max(longest, time.monotonic() - before)
    served.shutdown()
    page.seen, page.longest = seen, longest
    yield page
    page.close()
    assert wrong == []


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opened")
    recorded(folder / "r.ggrec", run=True)
    case = graphs.views()
    plan = case.scheduler.plan(case.graph)
    case.close()
    for name in ("p.json.gz", "-o.json", "<b>ü 'x\".json"):
        plan.to_json(folder / name)
    log = plan.text()
    (folder / "log.txt").write_text(log)
    (folder / "two.log").write_text(f"{log}\n{log}")
    (folder / "utf16.log").write_bytes(log.encode("utf-16"))
    (folder / "page.html").write_text("<!doctype html><html>")
    (folder / "text.txt").write_text("hello")
    (folder / "empty").write_bytes(b"")
    (folder / "m.gguf").write_bytes(b"GGUF\3" + bytes(19))
    (folder / "cut.json.gz").write_bytes((folder / "p.json.gz").read_bytes()[:900])
    (folder / "cut.ggrec").write_bytes((folder / "r.ggrec").read_bytes()[:60])
    return folder


def opened(page, path):
    """Opens a file and waits for its page or an error, which is returned."""
    page.evaluate("() => { const f = document.querySelector('iframe'); if (f) f.remove(); }")
    page.set_input_files("#choose", path)
    until(page, "document.querySelector('iframe') || document.getElementById('error').textContent")
    return page.text_content("#error")


def inside(page):
    """The frame with the page of a plan, when it is drawn."""
    frame = page.frames[-1]
    frame.wait_for_selector("#headline")
    return frame


def test_it_loads_from_its_own_folder_and_stays_alive(page):
    assert page.seen == sorted(page.seen) and len({*page.seen}) > 3 and 0 < page.seen[-1] <= 1
    assert page.longest < 2  # a worker loads


@pytest.mark.parametrize("name", ["p.json.gz", "log.txt", "utf16.log", "two.log", "-o.json",
                                  "<b>ü 'x\".json"])  # fmt: skip
def test_a_plan_has_its_verdict_and_its_page(page, made, name, monkeypatch):
    monkeypatch.chdir(made)
    assert opened(page, made / name) == ""
    given = f"./{name}" if name.startswith("-") else name
    assert page.text_content("#verdict") == ok("check", given)
    plan = ggml.Plan.from_json(made / "p.json.gz")
    assert inside(page).inner_text("#headline").startswith(plan.headline().partition(";")[0])
    assert page.is_hidden("#which") and page.get_attribute("#save", "download").endswith(".html")
    assert ("2 debug prints" in page.text_content("#notes")) == (name == "two.log")
    assert page.locator("header b").count() == 0  # a name is text
    assert inside(page).evaluate("window.origin") == "null"  # it reaches nothing of the site


def test_a_record_shows_its_plans(page, made, monkeypatch):
    monkeypatch.chdir(made)
    record = ggml.Record.read(made / "r.ggrec")
    assert opened(page, made / "r.ggrec") == "" and page.is_visible("#which")
    assert page.text_content("#verdict") == ok("check", "r.ggrec")
    most = max(record, key=lambda one: one.computed)
    assert inside(page).inner_text("#headline").endswith(f": {most.plan.headline()}")
    assert inside(page).locator("#rail .plan").count() == len(record)
    assert page.locator("#plans option").count() == len(record) + 1
    inside(page).click(f"#rail .plan >> nth={len(record) - 1}")  # without the network or a history
    assert inside(page).inner_text("#headline").endswith(record.plans[-1].plan.headline())
    other = next(one for one in record if one.plan.headline() != most.plan.headline())
    page.select_option("#plans", str(other.index))
    until(page, "document.getElementById('state').textContent === ''")
    assert inside(page).inner_text("#headline") == other.plan.headline()
    assert page.text_content("#verdict") == ok("check", "r.ggrec")  # of the whole record


@pytest.mark.parametrize("name", ["page.html", "text.txt", "empty", "m.gguf", "cut.json.gz",
                                  "cut.ggrec"])  # fmt: skip
def test_another_file_is_refused_in_our_words(page, made, name, monkeypatch):
    monkeypatch.chdir(made)
    found = opened(page, made / name)
    if name != "m.gguf":  # a model needs the native part, which it says
        assert f"error: {found}\n" == fails("check", name)
    assert (name if name != "m.gguf" else "native library") in found
    assert page.locator("iframe").count() == 0
    assert opened(page, made / "p.json.gz") == ""  # and goes on


def test_a_file_can_be_dropped(page, made):
    page.evaluate("() => { const f = document.querySelector('iframe'); if (f) f.remove(); }")
    dropped = page.evaluate_handle(
        "text => { const d = new DataTransfer(); d.items.add(new File([text], 'dropped.log'));"
        " return d; }", (made / "log.txt").read_text(),
    )  # fmt: skip
    for event in ("dragover", "drop"):
        page.dispatch_event("body", event, {"dataTransfer": dropped})
    until(page, "document.querySelector('iframe')")
    assert "dropped.log" in page.title() and "dropped" in page.text_content("#verdict")
