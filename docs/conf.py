"""The documentation site: the Markdown of this folder, as Sphinx shows it (``nox -s docs``).

The pages are plain Markdown, made to be read on a code host, too; ``_toc.yml`` orders them. Notebooks are
shown as they were executed (``nox -s notebooks``). The site loads nothing from other hosts: formulas are
MathML, written at build time.
"""

from importlib import metadata

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

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
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # as code hosts make them of the headings' words
nb_execution_mode = "off"

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# The site is built without frameworks and trainers.
autodoc_mock_imports = ["keras", "lightning", "sympy", "tensorflow", "torch", "transformers"]
napoleon_use_ivar = True  # fields of dataclasses are listed once


def _visit_math(translator: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    block = isinstance(node, nodes.math_block)
    try:
        formula = str(tex2mathml(node.astext(), as_block=block))
    except MathError as error:
        logger.warning("this formula can't be shown: %s", error, location=node)
        formula = translator.encode(node.astext())
    translator.body.append(f'<div class="math">{formula}</div>\n' if block else formula)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register the renderer of formulas."""
    app.add_html_math_renderer("mathml", (_visit_math, None), (_visit_math, None))
