"""The recipe of the shipped model: how meshes are parted, what is skipped, tried again and refused."""

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from mesh_files import gltf, write_glb

import nvs
from apps import demo_model
from apps.cli import main
from data import UserError

ROOT = Path(__file__).resolve().parents[2]
TINY = shlex.split("""
--model.dim 32 --model.layers 2 --model.attention-head-dim 16 --model.memory.head_dim 16 --data.image-size 16 16
--data.batch-size 2 --data.input-views 1 2 --data.target-views 1 1 --data.workers 0 --data.cache-gb 0.1
--training.max-steps 2 --training.validate-every 2 --training.devices 1 --training.compile false
""")


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder


def names_of(folder: Path) -> dict[str, list[str]]:
    return {split: sorted(found) for split, found in demo_model.split_meshes(folder).items()}


def test_the_manifest_tells_the_split(tmp_path, capsys):
    folder = fill(tmp_path, "a.glb", "b.glb", "c.glb", "d.glb")
    rows = ['a,a.glb,"Amazon.com, Inc.",train', "b,b.glb,x,test", "c,c.glb,x,val"]
    (folder / "manifest.csv").write_text("\n".join(["id,file,creator,split", *rows]))
    assert names_of(folder) == {"train": ["a"], "val": ["c"], "test": ["b"]}
    assert f"1 of 4, first {folder / 'd.glb'}" in capsys.readouterr().err  # it has no row, and is left out


def test_folders_tell_the_split(tmp_path, capsys):
    folder = fill(tmp_path, "train/a.glb", "train/more/b.obj", "test/c.glb")
    assert names_of(folder) == {"train": ["train-a", "train-more-b"], "val": [], "test": ["test-c"]}
    assert capsys.readouterr().err == ""
    fill(tmp_path, "other/d.glb", "e.glb")
    assert names_of(folder)["train"] == ["train-a", "train-more-b"]
    assert "folders name no split" in (told := capsys.readouterr().err) and "2 of 5" in told


def test_without_a_split_every_twentieth_mesh_is_held_out(tmp_path):
    parted = names_of(fill(tmp_path, *(f"{i:03d}.glb" for i in range(60))))
    assert parted["val"] == ["009", "029", "049"] and parted["test"] == ["019", "039", "059"]
    assert len(parted["train"]) == 54


def test_meshes_of_which_none_is_for_training_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"manifest\.csv"):
        demo_model.split_meshes(fill(tmp_path, "test/a.glb"))


class TestStages:
    @pytest.fixture
    def calls(self, monkeypatch, tmp_path):
        """Commands that are run, each with its environment; those in `failing` fail after they have begun."""
        monkeypatch.chdir(tmp_path)
        calls, failing = [], []

        def run(*words, environment=None):
            calls.append((words, environment))
            fill(tmp_path, "runs/demo/config.yaml")
            if len(calls) in failing:
                fill(tmp_path, "runs/demo/last.ckpt")
                raise demo_model.StepError("failed")

        monkeypatch.setattr(demo_model, "run_nvs", run)
        return calls, failing

    def test_a_stage_that_is_done_is_not_run_again(self, calls):
        demo_model.train("demo", [])
        demo_model.train("demo", [])
        assert [words for words, _ in calls[0]] == [
            ("train", "--config", "configs/demo.yaml", "--output", str(Path("runs/demo")))
        ]

    def test_where_compiled_code_fails_the_run_goes_on_without(self, calls):
        calls[1].append(1)
        demo_model.train("demo", ["--data.workers", "0"])
        (_, plain), (words, environment) = calls[0]
        assert plain is None and environment == {"NVS_KERNELS": "reference"}
        assert words[-4:] == ("--resume", "last", "--training.compile", "false")

    def test_a_run_that_fails_twice_is_not_done(self, calls):
        calls[1].extend([1, 2])
        with pytest.raises(UserError, match="failed"):
            demo_model.train("demo", [])
        assert not Path("runs/demo/done").exists()


def test_failures_and_interruptions_of_a_command_are_told(monkeypatch):
    for code, kind in ((1, UserError), (130, KeyboardInterrupt)):
        monkeypatch.setattr(subprocess, "call", lambda *_, code=code, **__: code)
        with pytest.raises(kind):
            demo_model.run_nvs("inspect")


def test_commands_run_as_a_person_runs_them(capfd):
    demo_model.run_nvs("--version")
    assert capfd.readouterr().out.startswith("nvs --version\n")
    with pytest.raises(UserError, match="exit code 2"):
        demo_model.run_nvs("nonsense")


def test_wrong_usage(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit):
        demo_model.main(["--only-objects"])
    assert demo_model.main(["--only-objects", "--meshes", str(tmp_path)]) == 1
    assert "no mesh files" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert demo_model.main([]) == 1
    assert "in the folder of the repository" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_manifest_that_cannot_be_read_is_told(tmp_path):
    (fill(tmp_path, "a.glb") / "manifest.csv").write_bytes(b"file,split\n\xff\xfe,train\n")
    with pytest.raises(UserError, match="cannot be read as UTF-8"):
        demo_model.split_meshes(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "with_meshes"), [(demo_model.GPU, True), (demo_model.CPU, False)])
def test_the_whole_recipe_at_tiny_size(monkeypatch, tmp_path, recipe, with_meshes):
    """In this process, for each command of its own takes seconds to start."""
    monkeypatch.chdir(tmp_path)
    for name in ("configs", "data"):
        (tmp_path / name).symlink_to(ROOT / name)
    commands = []

    def run(*words, environment=None):
        commands.append(words[0])
        assert main(list(words)) == 0

    monkeypatch.setattr(demo_model, "run_nvs", run)
    meshes = None
    if with_meshes:
        meshes = tmp_path / "meshes"
        for split in ("train", "test", "val"):
            (meshes / split).mkdir(parents=True)
            write_glb(meshes / split / f"{split}.glb", gltf())
    tiny = replace(recipe, size=16, object_views=6, scenes=2, scene_views=3, options=tuple(TINY))
    demo_model.make_model(tiny, Path("out/result"), meshes)
    model = nvs.load_model("out/result/model.safetensors")
    assert model.trained is not None and model.trained.steps == 2
    assert Path("out/result/curve.png").exists()
    judged = json.loads(Path("out/result/eval/metrics.json").read_text())["scenes"]
    # Procedural scenes of 3 pictures are too few photos; in a shard, captures are numbered.
    assert [scene["name"] for scene in judged] == ["00000000"] * with_meshes + ["skull", "gso_toy"]
    first = len(commands)
    demo_model.make_model(tiny, Path("out/result"), meshes)
    assert commands[first:] == ["prepare"] * 3 + ["convert", "eval"]
