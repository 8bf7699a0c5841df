"""The memory view of a plan's page in a real browser."""

from __future__ import annotations

import pytest

import ggml_py as ggml

from ..support.drawn_plans import HOSTILE, llama
from ..support.page_driver import details, picked

# The middle of a tensor's block on the screen.
PLACE = """id => {
    const m = page.memory, b = m.buffer.blocks.find(x => x.tensor === id);
    const box = document.getElementById('map').getBoundingClientRect();
    return [box.left + m.x(b.first + 0.5), box.top + m.y(b.at + b.padded / 2)];
}"""


@pytest.fixture
def opened(open_file, tmp_path):
    """Opens a plan's page in the memory view."""

    def opened(plan, **settings):
        path = tmp_path / "memory.html"
        plan.export(path)
        page = open_file(path, **{"width": 1300, "height": 1100, **settings})
        page.click("#tab-memory")
        return page

    return opened


def buffers(plan):
    return [buffer for buffer in plan.memory.buffers if buffer.size]


@pytest.mark.parametrize("refused", [(), ("SOFT_MAX",)], ids=["one", "copies"])
def test_the_page_has_every_block_and_byte(opened, plans, refused):
    plan = llama(4, refused=refused)
    page = opened(plan)
    for i, buffer in enumerate(buffers(plan)):
        shown = page.evaluate(
            "i => page.plans[0].buffers[i].blocks.map(b => [b.tensor, b.chunk, b.size, b.padded,"
            " b.first, b.kept ? -1 : b.last, b.placeOf, +b.kept, b.at])", i
        )  # fmt: skip
        bases = [sum(buffer.chunk_sizes[:chunk]) for chunk in range(len(buffer.chunk_sizes))]
        assert shown == [
            [b.tensor, b.chunk, b.size, b.padded, b.first, -1 if b.kept else b.last, b.place_of,
             int(b.kept), bases[b.chunk] + b.offset]
            for b in buffer.blocks
        ]  # fmt: skip
        live = page.evaluate("i => { page.memory.choose(i); return [...page.memory.live]; }", i)
        assert live == list(buffer.live)
    steps = page.evaluate("page.plans[0].steps.map((_, i) => page.plans[0].step(i))")
    for i, said in enumerate(steps):
        first, name, _end = plan.memory.what(i).split("'")
        assert name in said and (said.startswith(first) or first.strip() in said), (i, said)


def test_it_begins_at_the_peak_of_the_first_buffer(opened):
    plan = llama(4, refused=("SOFT_MAX",))
    page = opened(plan)
    first = buffers(plan)[0]
    assert page.evaluate("page.memory.step") == first.peak_step
    rows = page.eval_on_selector_all("#alive tbody tr", "rows => rows.map(r => +r.dataset.tensor)")
    assert rows == [b.tensor for b in first.alive(first.peak_step)]
    assert f"Step {first.peak_step}: ".lower() in page.inner_text("#at").lower()
    options = page.eval_on_selector_all(
        "#memory-view option", "all => all.map(o => o.text.split(',')[0])"
    )
    assert options == [b.name for b in buffers(plan)]


def test_a_click_shows_the_tensor_and_its_lifetime(opened):
    plan = llama(4)
    page = opened(plan)
    buffer = buffers(plan)[0]
    block = max(buffer.blocks, key=lambda b: b.padded * (b.last - b.first + 1))
    page.locator("#map").scroll_into_view_if_needed()
    page.mouse.click(*page.evaluate(PLACE, block.tensor))
    assert picked(page) == block.tensor and plan.tensor(block.tensor).name in details(page)
    assert page.locator(f"#alive tr[data-tensor='{block.tensor}'][aria-selected=true]").count() == 1


def test_keys_search_zoom_and_another_buffer(opened):
    plan = llama(4, refused=("SOFT_MAX",))
    page = opened(plan)
    page.focus("#map")
    before = page.evaluate("page.memory.step")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("page.memory.step") == before + 1
    page.keyboard.press("Home")
    assert page.evaluate("page.memory.step") == 0
    page.click("#memory-view button:has-text('Peak')")
    assert page.evaluate("page.memory.step") == before
    page.select_option("#memory-view select", index=1)
    assert page.evaluate("page.memory.step") == buffers(plan)[1].peak_step
    page.hover("#map")
    page.mouse.wheel(0, -400)
    assert page.evaluate("page.memory.to - page.memory.from") < len(plan.memory.steps)
    page.click("#memory-view button:has-text('All steps')")
    assert page.evaluate("page.memory.to") == len(plan.memory.steps)


def test_the_card_of_a_device_leads_to_its_addresses(opened):
    plan = llama(4, refused=("SOFT_MAX",))
    page = opened(plan)
    second = buffers(plan)[1]
    page.click("#tab-lanes")
    page.click(f"#glance button[title='Show the addresses on {second.device}']")
    assert page.is_visible("#map") and page.evaluate("page.memory.buffer.name") == second.name


def test_a_log_has_no_addresses(open_file, plans, tmp_path):
    ggml.Plan.from_debug_log(plans["mlp"].text()).export(tmp_path / "log.html")
    page = open_file(tmp_path / "log.html")
    assert page.locator("#tab-memory").count() == 0


def test_names_are_only_text(opened):
    page = opened(llama(2, suffix=HOSTILE))
    assert HOSTILE in page.text_content("#alive")
