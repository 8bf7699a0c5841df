"""Runs command lines one after the other (a list of lists of words on standard input) and prints
what became of each, as JSON: exit status, standard output, standard error."""

import json
import sys

from answer import ran  # of docs/open: beside this file, or on the path

if __name__ == "__main__":
    print(json.dumps([ran(*words) for words in json.load(sys.stdin)]))
