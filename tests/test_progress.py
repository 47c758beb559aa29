"""Progress of long work in a log: a line after every half minute of silence, none for what is quick."""

import io
from types import SimpleNamespace

import pytest
from bench.engine.running import Running, in_chunks
from bench.progress import Display, Lines, download_bar, progress_bar
from bench.store.specs import Cell
from rich.console import Console


class _Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = _Clock()
    monkeypatch.setattr("bench.progress.time", SimpleNamespace(monotonic=clock))
    return clock


def test_images_are_reported_every_half_minute_with_the_time_left(clock):
    said = []
    lines = Lines(said.append)
    for done in range(0, 1000, 10):  # 10 images a second
        lines("embedding", done, 1000)
        clock.now += 1
    assert said == [
        "embedding: 300 of 1000, about 70 s left",
        "embedding: 600 of 1000, about 40 s left",
        "embedding: 900 of 1000, about 10 s left",
    ]


def test_quick_work_says_nothing_and_what_was_there_before_counts_for_nothing(clock):
    said = []
    lines = Lines(said.append)
    for done in range(20):
        lines("decoding", done, 20)
        clock.now += 1.4
    assert said == []
    lines("embedding", 5000, 6000)
    clock.now += 10
    lines("embedding", 5100, 6000)
    assert said == ["embedding: 5100 of 6000, about 90 s left"]
    for done, of in ((0, 3), (3, 3)):  # no rate is known yet, nothing is left
        clock.now += 40
        lines("writing", done, of)
    assert said[1:] == ["writing: 0 of 3", "writing: 3 of 3"]


def _console(**options):
    return Console(file=io.StringIO(), width=60, **options)


def test_bars_are_lines_where_there_is_no_terminal(clock):
    console = _console()
    with progress_bar(console) as advance:
        advance("[b]\x1b embedding", 1, 61)
        clock.now += 30
        advance("[b]\x1b embedding", 31, 61)
    with download_bar(console) as advance:
        advance(0, 80_000_000)
        clock.now += 60
        advance(20_000_000, 80_000_000)
    assert console.file.getvalue().splitlines() == [
        "bench: [b]\\x1b embedding: 31 of 61, about 30 s left",
        "bench: downloading, MB: 20 of 80, about 3 min left",
    ]


def test_a_run_that_is_silent_says_what_it_is_doing(clock):
    console, cell = _console(), Cell("reality_check", "cub200", "cosface")
    display = Display(console)
    display.add(cell, 40)
    for second in range(1, 100):
        clock.now += 1
        if second == 50:
            display.advance(cell, 10)
            display.note(cell, "1 trial")
        display.working(f"epoch {second // 10}, batch {second}")
    assert console.file.getvalue().splitlines() == [
        "    30 s  0 of 40 epochs; now: epoch 3, batch 30",
        "    50 s  cosface on cub200: 1 trial",
        "    80 s  10 of 40 epochs, about 4 min left; now: epoch 8, batch 80",
    ]


def test_on_a_terminal_the_bars_say_it(clock):
    console = _console(force_terminal=True)
    with Display(console) as display:
        clock.now += 100
        display.working("epoch 3, batch 30")
    with progress_bar(console) as advance:
        clock.now += 100
        advance("embedding", 31, 61)
    assert "batch" not in console.file.getvalue()
    assert "bench:" not in console.file.getvalue()


def _bars(width, *cells):
    """Lines of the bars of cells of 2,750 epochs, half of them done, after two of five tests."""
    with Display(Console(file=io.StringIO(), width=width, force_terminal=True)) as display:
        for cell in cells:
            display.add(cell, 2750, 5)
        display.advance(cells[0], 1375)
        display.note(cells[0], "50/50 trials, best val MAP@R 0.7123")
        for seed in (0, 1):
            display.tested(cells[0], seed)
        shown = Console(file=io.StringIO(), width=width)
        shown.print(display._progress)
    return shown.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_cuts_notes_and_names_but_not_the_time_left(width):
    cells = [Cell("reality_check", "ndigit_smoke", "dul_cls"), Cell("reality_check", "glyphs", "proxy_anchor_el_nivmf")]
    (one,), (whole, first, _) = _bars(width, cells[0]), _bars(width, *cells)
    for line in (one, first):
        assert "1375/2750 epochs 0:00:00 left" in line
        assert len(line) <= width
    assert "1375/5500 epochs" in whole
    assert " all " in whole
    assert ("dul_cls on ndigit_smoke" in one) == (width > 60)
    assert "2 of 5 tested" in _bars(120, cells[0])[0]


def test_a_step_of_several_chunks_says_how_far_it_is():
    heard = []
    in_chunks(5, 2, lambda rows, size: None, Running(heard.append), "features")
    in_chunks(2, 2, lambda rows, size: None, Running(heard.append), "all at once")
    assert heard == ["features: 0 of 5", "features: 2 of 5", "features: 4 of 5", "all at once"]
