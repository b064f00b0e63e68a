"""A person in front of the pages of a server: a cookie, and the token of what is shown."""

import re

HTML = {"accept": "text/html,application/xhtml+xml"}


class Person:
    """A browser's cookie, and the token of the pages that it shows."""

    def __init__(self, call, secret) -> None:
        self._call = call
        form = {"key": secret, "next": "dashboard"}
        self.login = call("POST", "/login", data=form, headers={"sec-fetch-site": "same-origin"})
        cookie = self.login.headers.get("set-cookie", "")
        self.headers = {"cookie": cookie.partition(";")[0], "sec-fetch-site": "same-origin"}

    def get(self, path):
        return self._call("GET", path, headers={**self.headers, **HTML})

    @property
    def csrf(self):
        return re.search(r'name="csrf" content="([^"]*)"', self.get("/chat").text).group(1)

    def ask(self, method, path, *, csrf=None, **options):
        headers = {**self.headers, "x-csrf-token": self.csrf if csrf is None else csrf}
        return self._call(method, path, headers=headers, **options)
