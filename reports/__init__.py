"""Writers of one `Diagnosis`: HTML page, Markdown, terminal summary and JSON.

Each module takes the finished result and only words, orders and draws it: no evidence is computed here and no
threshold of a verdict lives here. Heavy imports (altair, jinja2) happen inside the functions that
need them.
"""
