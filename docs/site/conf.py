"""Sphinx's configuration. docs/site/make.py puts the sources together and calls it."""

import torch_patterns

project = "torch_patterns"
copyright = "the torch_patterns developers"  # Sphinx's word
release = torch_patterns.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
toc_object_entries = False
napoleon_use_rtype = False  # "(values, indices): ..." names results, not types
napoleon_custom_sections = [("Fields", "params_style")]  # of containers

html_theme = "pydata_sphinx_theme"
html_title = "torch_patterns"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "show_nav_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
pygments_style = "friendly"
