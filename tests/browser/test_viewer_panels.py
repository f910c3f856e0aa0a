"""The panels of the viewer in a real browser: comparing, camera paths, films, uploads, restarts."""

from __future__ import annotations

import base64
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from viewer_screen import Screen, Server, pixels, psnr

import data
import nvs

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def test_compare_shows_the_likeness_of_photo_and_rendering(screen: Screen) -> None:
    screen.tab("Compare")
    panel = screen.page.locator(".nvs-compare")
    screen.page.wait_for_selector('.nvs-compare:not([data-ready=""])')
    index = int(panel.get_attribute("data-ready"))
    urls = [panel.locator("canvas").nth(i).evaluate("canvas => canvas.toDataURL()") for i in range(2)]
    shown = [pixels(base64.b64decode(url.partition(",")[2])) for url in urls]
    assert float(panel.get_attribute("data-psnr")) == pytest.approx(psnr(*shown), abs=1e-3)
    assert screen.page.locator(".nvs-psnr").inner_text().startswith(f"{psnr(*shown):.1f}")
    assert "not given" in screen.page.locator(".nvs-meaning").inner_text()
    screen.page.locator(".nvs-compare input[type=range]").fill("20")
    assert "20%" in panel.get_attribute("style")
    screen.page.get_by_role("checkbox", name="Difference").check()
    assert panel.get_by_role("img", name="Difference").is_visible()
    screen.page.get_by_role("button", name="Go there").click()
    screen.wait(f"app.camera.photo === {index}")
    screen.settle()


def test_compare_shows_the_photo_of_the_scene_that_is_open(screen: Screen) -> None:
    """Photos of the next scene have the same numbers, and the browser keeps those that it has seen."""
    for turn in range(2):
        if turn:
            first = screen.ask("app.scene.id")
            screen.tab("Scene")
            screen.page.locator("#nvs-choice input").click()
            screen.page.locator("[role=listbox] [role=option]").nth(1).click()
            screen.wait(f"app.scene && app.scene.id !== {json.dumps(first)}")
        screen.tab("Compare")
        screen.settle()
        screen.page.get_by_label("Photo to compare").select_option("5")
        screen.page.wait_for_selector('.nvs-compare[data-ready="5"]')
        url = screen.page.locator(".nvs-compare-photo").evaluate("canvas => canvas.toDataURL()")
        scene = data.open_scene(ROOT / "data/captures" / screen.ask("app.scene.name"))
        photo = scene.load([5], image_size=(64, 64)).images[0]
        expected = (photo.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
        assert psnr(pixels(base64.b64decode(url.partition(",")[2])), expected) > 45


def test_compare_ends_at_the_photo_that_was_chosen_last(screen: Screen) -> None:
    screen.tab("Compare")
    screen.page.wait_for_selector('.nvs-compare:not([data-ready=""])')
    step = "document.querySelector('.nvs-part-compare button[title=\"Next photo\"]').click()"
    screen.page.evaluate(f"() => {{ for (let i = 0; i < 9; i++) {step}; }}")
    chosen = screen.page.get_by_label("Photo to compare").input_value()
    screen.page.wait_for_selector(f'.nvs-compare[data-ready="{chosen}"]')
    assert screen.page.locator(".nvs-part-compare p").inner_text() == ""


def test_compare_is_empty_for_a_saved_scene(screen: Screen, tmp_path: Path) -> None:
    screen.tab("Compare")
    screen.page.wait_for_selector('.nvs-compare:not([data-ready=""])')
    screen.tab("Scene")
    saved = screen.saved(lambda: screen.page.get_by_role("link", name="Save scene").click())
    upload(screen, saved.rename(tmp_path / "saved.safetensors"))
    screen.wait("app.scene && app.scene.format === 'scene state'")
    screen.settle()
    screen.tab("Compare")
    assert screen.page.locator(".nvs-compare").get_attribute("data-ready") == ""
    assert "dB" not in screen.page.locator(".nvs-psnr").inner_text()
    assert screen.page.locator(".nvs-compare-photo").evaluate("canvas => canvas.width") == 0
    assert "holds no photos" in screen.page.locator(".nvs-part-compare p").inner_text()


def test_flying_to_a_photo_takes_over_from_the_path(screen: Screen) -> None:
    screen.tab("Camera path")
    screen.do("orbit")
    screen.wait("app.route.length > 1")
    play = screen.page.locator('[data-do="play"]')
    for go in (screen.page.locator(".nvs-strip .nvs-thumb").nth(1), screen.page.locator('[data-do="go-1"]')):
        play.click()
        screen.wait("app.movers.some((mover) => mover.active)")
        go.click()
        screen.wait("!app.movers.some((mover) => mover.active) && !app.camera.flying")
        assert play.inner_text() == "Play"
    screen.settle()


def test_keyframes_can_be_worked_on_while_their_pictures_arrive(screen: Screen) -> None:
    screen.tab("Camera path")
    screen.do("spiral")
    lens = screen.page.get_by_label("Field of view of keyframe 1,")
    lens.click()
    lens.press("Control+a")
    screen.page.keyboard.type("60", delay=300)
    screen.page.keyboard.press("Enter")
    assert screen.ask("app.path.keyframes[0].fov") == 60
    screen.wait("app.path.keyframes.every((key) => key.thumb)")
    assert screen.page.locator(".nvs-keys .nvs-thumb img").count() == screen.ask("app.path.keyframes.length")


def test_keyframes_are_added_moved_played_saved_and_loaded(screen: Screen, tmp_path: Path) -> None:
    screen.tab("Camera path")
    screen.do("add")
    screen.drag(0.2, 0.0)
    screen.press("k")
    screen.drag(0.0, 0.1)
    screen.do("add")
    keys = screen.ask("app.path.keyframes.map((one) => one.c2w)")
    screen.do("move-up-2")
    assert screen.ask("app.path.keyframes.map((one) => one.c2w)") == [keys[0], keys[2], keys[1]]
    screen.do("delete-1")
    assert screen.ask("app.path.keyframes.map((one) => one.c2w)") == [keys[0], keys[1]]
    screen.page.get_by_label("Field of view of keyframe 2").fill("30")
    screen.page.keyboard.press("Enter")
    screen.do("go-0")
    screen.wait("!app.camera.flying")
    screen.settle()
    assert np.allclose(screen.c2w.ravel(), screen.ask("app.toScene(app.path.keyframes[0].c2w)"), atol=1e-5)
    screen.page.get_by_label("Seconds").fill("1")
    screen.page.keyboard.press("Enter")
    screen.wait("app.route.length === 24")
    screen.do("play")
    screen.wait("Math.abs(app.camera.fov - 30) < 1e-3")
    screen.settle()
    file = screen.saved(lambda: screen.do("save"))
    assert nvs.trajectory.read_path(file.rename(tmp_path / "path.json")).cameras.num_views == screen.ask(
        "app.route.length"
    )
    screen.do("clear")
    assert screen.ask("app.path.keyframes.length") == 0
    with screen.page.expect_file_chooser() as chooser:
        screen.do("load")
    chooser.value.set_files(tmp_path / "path.json")
    screen.wait("app.path.keyframes.length === 2")
    assert np.allclose(screen.ask("app.path.keyframes.map((one) => one.c2w)"), keys[:2], atol=1e-5)


@pytest.mark.parametrize("kind", ["mp4", "gif", "png"])
def test_film_has_every_picture(screen: Screen, kind: str) -> None:
    screen.tab("Camera path")
    screen.do("orbit")
    screen.wait("app.route.length > 1")
    screen.page.get_by_label("Seconds").fill("1")
    screen.page.keyboard.press("Enter")
    screen.page.get_by_label("Kind").select_option(kind)
    screen.page.get_by_label("Pictures per second").fill("12")
    screen.page.keyboard.press("Enter")
    count = 12
    screen.wait(f"app.route.length === {count}")
    screen.do("export")
    button = screen.page.locator("#nvs-film-file")
    button.wait_for(state="visible")
    file = screen.saved(button.click)
    if kind == "png":
        with zipfile.ZipFile(file) as pictures:
            assert sum(name.endswith(".png") for name in pictures.namelist()) == count
    else:
        assert imageio_ffmpeg.count_frames_and_secs(str(file))[0] == count


def test_film_can_be_stopped(screen: Screen) -> None:
    screen.tab("Camera path")
    screen.do("spiral")
    screen.page.get_by_label("Seconds").fill("60")
    screen.page.keyboard.press("Enter")
    screen.wait("app.route.length > 1000")
    screen.do("export")
    screen.page.get_by_role("progressbar").wait_for()
    screen.page.get_by_role("button", name="Stop", exact=True).click()
    screen.page.get_by_role("progressbar").wait_for(state="detached")
    screen.drag(0.1, 0.0)
    assert screen.page.locator("#nvs-film-file").is_hidden()


def test_screenshot_is_the_picture(screen: Screen) -> None:
    file = screen.saved(lambda: screen.page.get_by_role("button", name="Save picture").click())
    assert psnr(pixels(file.read_bytes()), screen.picture()) > 40


def test_other_photos_can_be_chosen(screen: Screen) -> None:
    screen.drag(0.2, 0.0)
    world = screen.ask("app.toWorld(app.camera.c2w)")
    scene = screen.ask("app.scene.id")
    strip = screen.page.locator(".nvs-strip")
    used = len(screen.ask("app.scene.photos.filter((one) => one.role === 'input')"))
    strip.locator("input:checked").first.uncheck()
    screen.page.get_by_role("button", name=f"Use these {used - 1} photos").click()
    screen.wait(f"app.scene && app.scene.id !== '{scene}'")
    screen.settle()
    assert strip.locator("input:checked").count() == used - 1
    assert np.allclose(screen.ask("app.toWorld(app.camera.c2w)"), world, atol=1e-5)


def upload(screen: Screen, path: Path) -> None:
    screen.tab("Scene")
    screen.page.locator("#nvs-upload input[type=file]").set_input_files(path)


def test_good_zip_opens_also_after_a_bad_one(screen: Screen, capture: Path, tmp_path: Path) -> None:
    archive, bad = tmp_path / "balls.zip", tmp_path / "bad.zip"
    bad.write_bytes(b"this is no archive")
    with zipfile.ZipFile(archive, "w") as file:
        for path in capture.rglob("*.*"):
            file.write(path, path.relative_to(capture))
    screen.page.locator("#nvs-about").scroll_into_view_if_needed()
    upload(screen, bad)
    message = screen.page.locator(".nvs-job-problem")
    message.wait_for()
    assert message.evaluate("e => e.getBoundingClientRect().top") >= 0, "the message is out of sight"
    screen.page.wait_for_function("() => !document.querySelector('#nvs-upload').innerText.includes('bad')")
    before = screen.ask("app.scene.id")
    upload(screen, archive)
    screen.wait(f"app.scene && app.scene.id !== '{before}'")
    screen.settle()
    assert screen.ask("app.scene.photos.length") == 8
    screen.page.wait_for_function("() => document.querySelector('#nvs-choice input').value === 'balls (uploaded)'")
    before = screen.picture()
    screen.drag(0.1, 0.1)
    assert psnr(before, screen.picture()) < 40


@pytest.mark.parametrize("kind", ["no zip", "no photos", "escape"])
def test_bad_zip_is_refused_in_words(screen: Screen, tmp_path: Path, kind: str) -> None:
    archive = tmp_path / "bad.zip"
    if kind == "no zip":
        archive.write_bytes(b"this is no archive")
    else:
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("../../escaped.json" if kind == "escape" else "notes.txt", json.dumps({}))
    before = screen.ask("app.scene.id")
    upload(screen, archive)
    message = screen.page.locator(".nvs-job-problem")
    message.wait_for()
    assert len(message.inner_text()) > 20
    assert "Error" not in message.inner_text()
    screen.drag(0.1, 0.0)
    assert screen.ask("app.scene.id") == before
    message.get_by_role("button", name="Close").click()
    message.wait_for(state="detached")


def test_restart_of_the_server_brings_the_view_back(
    browser: object, new_screen: Callable[..., Screen], tmp_path: Path
) -> None:
    server = Server(tmp_path)
    server.start()
    try:
        screen = new_screen(of=server).open()
        screen.drag(0.25, 0.1)
        screen.press("k")
        before = screen.c2w
        server.stop()
        screen.page.locator('.nvs-stage[data-state="lost"]').wait_for()
        assert "Reconnecting" in screen.page.locator(".nvs-banner").inner_text()
        server.start()
        screen.page.locator('.nvs-stage[data-state="live"]').wait_for()
        screen.settle()
        assert np.allclose(screen.c2w, before, atol=1e-5)
        assert screen.ask("app.path.keyframes.length") == 1
        screen.drag(0.1, 0.0)
    finally:
        server.stop()
