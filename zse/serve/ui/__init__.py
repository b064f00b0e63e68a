"""Pages for people: dashboard, playground, models, keys, requests, documentation.

Imported with the FastAPI part, after the model is ready; ``--no-ui`` leaves it out. A page is HTML
that is rendered here, of templates whose texts are escaped; its scripts and styles are files of
this package, and its policy lets in nothing else.
"""
