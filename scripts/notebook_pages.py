"""A hook of mkdocs: every notebook becomes a page of the site, its text and code as they stand."""

from __future__ import annotations

import json
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, *, config: Any) -> Files:
    """Add ``NAME.md`` beside every ``NAME.ipynb``."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        name = notebook.src_uri.rsplit("/", 1)[-1]
        cells = json.loads(notebook.content_string)["cells"]
        title, *rest = map(_markdown, cells)
        text = "\n\n".join([title, f"The notebook itself: [{name}]({name}).", *rest])
        files.append(File.generated(config, notebook.src_uri.replace(".ipynb", ".md"), content=text))
    return files


def _markdown(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
