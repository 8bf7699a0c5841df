"""Puts a report into one comment of a pull request, which later runs update. A step of action.yml.

    python sticky_comment.py REPORT.md ID

The report is in the job's summary already, so nothing here fails the job. An event without a pull
request gets no comment. The token of a pull request from a fork can only read, so that gets none.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

BOT = "github-actions[bot]"  # who writes with a job's token: others' comments are left alone
MOST = 65536  # characters of a comment


def ask(method: str, path: str, data: object = None) -> Any:
    """GitHub's answer to a request below the repository."""
    root = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}"
    headers = {
        "Accept": "application/vnd.github+json",
        "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
        "Content-Type": "application/json",
    }
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(f"{root}/{path}", body, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def found(number: int, marker: str) -> int | None:
    """The number of our comment, which begins with the marker."""
    page = 1
    while comments := ask("GET", f"issues/{number}/comments?per_page=100&page={page}"):
        for comment in comments:
            user = (comment["user"] or {}).get("login")  # null: whoever wrote it is gone
            if user == BOT and (comment["body"] or "").startswith(marker):
                return int(comment["id"])
        page += 1
    return None


def main(report: str, name: str) -> None:
    pull = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text()).get("pull_request")
    if not pull:
        print("no comment: this run is not about a pull request")
        return
    hidden = quote(name, safe="").replace("-", "%2D")  # "-->" would end the comment of HTML
    marker = f"<!-- ggml-py ci: {hidden} -->"
    server, repository, number = (
        os.environ[f"GITHUB_{name}"] for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")
    )
    run = f"{server}/{repository}/actions/runs/{number}"
    foot = f"\nOf {pull['head']['sha'][:8]}, by [this run]({run}).\n"
    text = Path(report).read_text(encoding="utf-8", errors="replace")
    title, table = text.partition("\n")[0], text.partition("\n<details>")[0]
    for shorter in (table, title):
        if len(marker) + len(text) + len(foot) + 1 > MOST:
            text = f"{shorter.rstrip()}\n\nThe rest, too long for a comment, is in the summary.\n"
    try:
        comment = found(pull["number"], marker)
        body = {"body": f"{marker}\n{text}{foot}"}
        if comment is None:
            made = ask("POST", f"issues/{pull['number']}/comments", body)
        else:
            made = ask("PATCH", f"issues/comments/{comment}", body)
    except OSError as error:  # HTTPError and URLError are
        print(f"::notice::No comment: {error}. The report is in the summary of this run. A comment "
              "needs `permissions: pull-requests: write`, which a fork's pull request never has")
        return
    with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as out:
        out.write(f"url={made['html_url']}\n")
    print(made["html_url"])


if __name__ == "__main__":
    main(*sys.argv[1:])
