"""The documentation site: the Markdown of this folder, as Sphinx shows it (``nox -s docs``).

The pages are plain Markdown, made to be read on a code host, too; ``_toc.yml`` says in which order they
stand. Notebooks are shown as they were executed (``nox -s notebooks``).
"""

from importlib import metadata

project = "Checkmate"
author = "The Checkmate authors"
copyright = f"2026, {author}. Apache-2.0"
release = metadata.version("checkmate-core")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_external_toc",
]

html_theme = "furo"
html_title = "Checkmate"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # as code hosts make them of the headings' words
nb_execution_mode = "off"

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

napoleon_use_ivar = True  # fields of dataclasses are listed once
