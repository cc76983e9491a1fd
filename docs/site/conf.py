"""How Sphinx builds the site; tools/make_site.py lays out its pages.

Nothing is loaded from elsewhere: the theme brings its own styles and scripts,
letters are those of the reader's system, and the search is a script beside the
pages, so that the site also works from a folder, without a server.
"""

project = "Haulway"
author = copyright = "the Haulway authors"
version = release = "@VERSION@"  # tools/make_site.py puts it here.

extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "index"
nitpicky = True
# Annotations name types of other packages, which have no page here.
nitpick_ignore_regex = [("py:.*", ".*")]
# A heading's anchor is what GitHub makes of the heading.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
maximum_signature_line_length = 60
python_use_unqualified_type_names = True
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = f"Haulway {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
# Summaries would be fetched, which a page in a folder may not do.
html_show_search_summary = False
pygments_style = "default"
pygments_dark_style = "monokai"
