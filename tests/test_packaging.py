"""The project as a whole: what is installed, what imports what, and that the documents say what is true."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from jsonargparse import capture_parser
from packaging.requirements import Requirement

from apps.arguments import run_command
from apps.cli import COMMANDS, function_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("apps", "data", "kernels", "nvs")
MODULES = sorted(path.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text(encoding="utf-8")
DISTRIBUTIONS = {"PIL": "pillow", "yaml": "pyyaml", "imageio_ffmpeg": "imageio-ffmpeg"}


def run_python(code: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def imports_of(module: Path) -> set[str]:
    """Top-level names of all that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def third_party(modules: list[Path]) -> set[str]:
    return {n for m in modules for n in imports_of(m)} - set(PACKAGES) - set(sys.stdlib_module_names)


def documented(program: str) -> list[list[str]]:
    """The commands of `program` that README shows in its code blocks, each as a list of words."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    blocks += re.findall(r"(?:^ {4}.*\n)+", README, flags=re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    commands = [line.split("#")[0].split() for line in lines]
    return [words[1:] for words in commands if words and words[0] == program]


class TestInstallation:
    @pytest.mark.slow
    def test_every_module_imports_without_a_gpu(self):
        names = [".".join(m.with_suffix("").parts).removesuffix(".__init__") for m in MODULES if m.stem != "__main__"]
        run_python(f"import importlib\nfor name in {names}: importlib.import_module(name)", CUDA_VISIBLE_DEVICES="")

    def test_the_libraries_import_lightly(self):
        """Neither slow nor optional packages are needed to import the three libraries."""
        heavy = {"lightning", "gradio", "open3d", "triton", "kornia", "imageio", "jsonargparse", "tensorboard"}
        assert run_python(f"import sys, data, kernels, nvs; print(sorted(set(sys.modules) & {heavy}))") == "[]\n"

    def test_wheel_holds_what_the_commands_need(self, tmp_path):
        pytest.importorskip("setuptools", minversion="77", reason="needs package setuptools")
        source = tmp_path / "source"
        for name in (*PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            source.mkdir(exist_ok=True)
            copy(ROOT / name, source / name)
        build = f"import setuptools.build_meta as b; print(b.build_wheel({str(tmp_path)!r}))"
        subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
        (wheel,) = tmp_path.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            held = set(archive.namelist())
            metadata = next(archive.read(name).decode() for name in held if name.endswith("entry_points.txt"))
        folders = ("apps/viewer/static", "data/captures", "nvs/assets")
        shipped = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.is_file()]
        wanted = {p.relative_to(ROOT).as_posix() for p in shipped} | {m.as_posix() for m in MODULES}
        assert wanted <= held
        assert {name.partition("/")[0] for name in held if ".dist-info" not in name} == set(PACKAGES)
        assert "nvs = apps.cli:main" in metadata
        assert wheel.name.startswith("nvs-0.")

    def test_shipped_captures_are_small_and_attributed(self):
        folders = sorted(p for p in (ROOT / "data/captures").iterdir() if p.is_dir())
        assert [p.name for p in folders] == ["gso_toy", "skull"]
        assert sum(p.stat().st_size for f in folders for p in f.rglob("*") if p.is_file()) < 4_000_000
        for folder in folders:
            text = (folder / "ATTRIBUTION.md").read_text(encoding="utf-8")
            assert "CC BY 4.0" in text and "https://" in text and "Changes" in text


class TestDependencies:
    def test_all_imports_are_declared_and_all_that_is_declared_is_imported(self):
        extras = PROJECT["project"]["optional-dependencies"]
        needed = {Requirement(r).name for r in PROJECT["project"]["dependencies"]}
        optional = {Requirement(r).name for name in ("perceptual", "sfm") for r in extras[name]}
        imported = {DISTRIBUTIONS.get(name, name) for name in third_party(MODULES)}
        assert imported <= needed | optional
        # Used without an import: TensorBoard by Lightning, Triton by PyTorch, websockets by Gradio; TorchMetrics
        # carries weights of LPIPS.
        assert needed - imported <= {"tensorboard", "torchmetrics", "triton", "websockets"}

    def test_kernels_need_torch_and_triton_only(self):
        assert third_party([m for m in MODULES if m.parts[0] == "kernels"]) <= {"torch", "triton", "jaxtyping"}

    def test_constraints_fit_the_declared_ranges(self):
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        pins = dict(line.lower().split("==") for line in lines if line and not line.startswith("#"))
        project = PROJECT["project"]
        for text in [
            *project["dependencies"],
            *(r for name in ("dev", "sfm") for r in project["optional-dependencies"][name]),
        ]:
            requirement = Requirement(text)
            assert requirement.specifier.contains(pins[requirement.name.lower()]), text

    def test_installed_versions_fit_the_declared_ranges(self):
        for requirement in map(Requirement, PROJECT["project"]["dependencies"]):
            if requirement.marker is None or requirement.marker.evaluate():
                assert requirement.specifier.contains(importlib.metadata.version(requirement.name)), requirement


class TestDocuments:
    def test_documented_nvs_commands_are_understood(self):
        commands = documented("nvs")
        assert {words[0] for words in commands} == set(COMMANDS)
        for command, *words in commands:
            function, name, rest = function_of(command, words)
            optional = COMMANDS[command].words_optional
            parser = capture_parser(lambda f=function, n=name, o=optional: run_command(f, n, [], words_optional=o))
            parser.parse_args(rest)

    @pytest.mark.slow
    def test_documented_python_runs(self, tmp_path, monkeypatch):
        (example,) = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
        monkeypatch.chdir(tmp_path)
        names: dict = {}
        exec(example.replace('"my_capture"', repr(str(ROOT / "data/captures/gso_toy"))), names)
        assert names["images"].shape == (8, 3, 64, 64)
        assert names["film"].shape == (24, 3, 64, 64)
        assert (tmp_path / "scene_again.safetensors").is_file()

    def test_documented_make_targets_exist(self):
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
        named = {words[0] for words in documented("make")} | set(re.findall(r"`make ([\w-]+)`", README))
        assert {"demo", "test"} <= named <= targets

    def test_every_module_is_named(self):
        named = (ROOT / "docs/modules.md").read_text(encoding="utf-8")
        assert not [str(m) for m in MODULES if m.name != "__init__.py" and f" {m.name} " not in named]

    def test_every_link_of_the_readme_leads_somewhere(self):
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
        assert links and all((ROOT / link).exists() for link in links)

    def test_architecture_is_short(self):
        assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) < 100

    def test_yaml_files_are_valid(self):
        for path in [ROOT / "environment.yml", *(ROOT / "configs").glob("*.yaml")]:
            assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict), path

    def test_no_file_names_a_place_on_some_machine(self):
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
        )
        if listed.returncode:
            pytest.skip("not a git checkout")
        pattern = re.compile(rb"(?<![\w.:/])/(?:work|root)/\w|--(?:extra-)?index-url|--find-links")
        for path in (ROOT / line for line in listed.stdout.splitlines()):
            if (
                path.suffix not in {".png", ".jpg", ".safetensors", ".mp4"}
                and path != Path(__file__)
                and path.is_file()
            ):
                assert not pattern.search(path.read_bytes()), path


class TestHouseRules:
    def test_files_stay_short(self):
        lengths = {m: len((ROOT / m).read_text(encoding="utf-8").splitlines()) for m in MODULES}
        assert {str(m): n for m, n in lengths.items() if n > (400 if m.name.startswith("triton_") else 300)} == {}

    def test_functions_stay_short(self):
        """Under sixty lines without signature and docstring, which are the help of a command."""
        long = []
        for module in MODULES:
            for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    body = node.body[1:] if ast.get_docstring(node) and node.body[1:] else node.body
                    if (body[-1].end_lineno or 0) - body[0].lineno >= 60:
                        long.append(f"{module}: {node.name}")
        assert long == []

    def test_tests_have_unique_names_and_no_packages(self):
        files = list((ROOT / "tests").rglob("*.py"))
        assert not [f for f in files if f.name == "__init__.py"]
        names = [f.name for f in files if f.name != "conftest.py"]  # pytest keeps those of several folders apart
        assert len(names) == len(set(names))
