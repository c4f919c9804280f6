"""The documents of the repository lead somewhere, and their maps are whole."""

import re

import daemon as d
import pytest

# What a README maps, by the names of files without their ending.
MAPS = {
    "python": ("core/*.c", "tensorcx/*.py"),
    "integrations/torch-tensorcx": ("torch_tensorcx/_[a-z]*.py",),
    "client": ("*.c",),
    "proto": ("wire/*.c", "cuda/*.c"),
    "proto/shm": ("*.c",),
    "examples": ("*.py", "*.c"),
    "tests": ("[a-z]*/",),
    "tests/checkgpu": ("[a-z]*.py",),
}


def test_links_of_the_documents_lead_somewhere():
    folders = (".", "docs", "*", "proto/*", "tests/*", "integrations/*")
    documents = {path for folder in folders for path in d.ROOT.glob(f"{folder}/*.md")}
    assert len(documents) > 20
    for document in sorted(documents):
        text = document.read_text()
        links = re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r"^\[\w+\]: (\.\S+)", text, re.M)
        files = [link for link in links if not link.startswith("https://")]
        missing = [link for link in files if not (document.parent / link).exists()]
        assert (document, missing) == (document, [])


@pytest.mark.parametrize("folder", MAPS)
def test_a_map_names_every_file_of_its_folder(folder):
    words = set(re.findall(r"\w+", (d.ROOT / folder / "README.md").read_text()))
    files = [path for pattern in MAPS[folder] for path in (d.ROOT / folder).glob(pattern)]
    assert files
    missing = sorted(path.name for path in files if path.stem not in words)
    assert missing == []
