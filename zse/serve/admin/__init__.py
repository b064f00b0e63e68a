"""The FastAPI part: everything that is not hot, imported and mounted after the model is ready.

``application`` puts the routers of its topics together and describes every route of the server.
"""
