"""The page of a plan's memory in a real browser."""

from __future__ import annotations

import pytest

from ggml_py.export.memory_page import page as render

from ..support.drawn_plans import HOSTILE, llama

# The middle of a tensor's block on the screen.
PLACE = """id => {
    const { data, state } = memoryPage, b = data.buffers[state.buffer];
    const block = b.blocks.find(x => x[0] === id);
    const box = document.getElementById('map').getBoundingClientRect();
    const at = block[2] + block[4] / 2, step = (block[5] + block[6] + 1) / 2;
    const x = (step - state.from) / (state.to - state.from) * box.width;
    return [box.left + x, box.top + box.height * (1 - at / b.size)];
}"""


@pytest.fixture
def opened(open_file, tmp_path):
    """Opens a plan's page."""

    def opened(plan, **settings):
        path = tmp_path / "memory.html"
        path.write_text(render(plan.memory), encoding="utf-8")
        return open_file(path, **{"width": 1300, "height": 800, **settings})

    return opened


def test_it_begins_at_the_peak_of_the_first_buffer(opened):
    plan = llama(4, refused=("SOFT_MAX",))
    page = opened(plan)
    first = next(b for b in plan.memory.buffers if b.size)
    assert page.evaluate("memoryPage.state.step") == first.peak_step
    rows = page.eval_on_selector_all("#alive tr", "rows => rows.map(r => r.innerText)")
    alive = [plan.tensor(b.tensor).name for b in first.alive(first.peak_step)]
    assert [row.split(" (")[0].strip() for row in rows] == alive
    assert f"Step {first.peak_step}: {plan.memory.what(first.peak_step)}" in page.inner_text("#at")
    options = page.eval_on_selector_all("#buffer option", "all => all.map(o => o.text)")
    assert [text.split(",")[0] for text in options] == [
        b.name for b in plan.memory.buffers if b.size
    ]


def test_a_click_tells_a_tensors_place_and_lifetime(opened):
    plan = llama(4)
    page = opened(plan)
    buffer = next(b for b in plan.memory.buffers if b.size)
    block = max(buffer.blocks, key=lambda b: b.padded * (b.last - b.first + 1))
    ids = sorted({b.tensor for each in plan.memory.buffers for b in each.blocks})
    page.mouse.click(*page.evaluate(PLACE, ids.index(block.tensor)))
    told = page.inner_text("#chosen")
    assert plan.tensor(block.tensor).name in told and f"{block.size:,}" in told
    assert f"step {block.first}: {plan.memory.what(block.first)}" in told
    assert page.evaluate("memoryPage.state.picked") == ids.index(block.tensor)


def test_keys_search_and_another_buffer(opened):
    plan = llama(4, refused=("SOFT_MAX",))
    page = opened(plan)
    page.focus("#map")
    before = page.evaluate("memoryPage.state.step")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("memoryPage.state.step") == before + 1
    page.keyboard.press("Home")
    assert page.evaluate("memoryPage.state.step") == 0
    page.keyboard.press("p")
    assert page.evaluate("memoryPage.state.step") == before
    page.fill("#search", "no such tensor")
    assert page.inner_text("#found") == "0 found"
    page.select_option("#buffer", index=1)
    second = [b for b in plan.memory.buffers if b.size][1]
    assert page.evaluate("memoryPage.state.step") == second.peak_step
    page.click("#theme")
    page.mouse.move(600, 400)
    page.mouse.wheel(0, -400)
    assert page.evaluate("memoryPage.state.to - memoryPage.state.from") < len(plan.memory.steps)
    page.click("#whole")
    assert page.evaluate("memoryPage.state.to") == len(plan.memory.steps)


def test_names_are_only_text(opened):
    page = opened(llama(2, suffix=HOSTILE))
    assert HOSTILE in page.text_content("#alive")
