"""The forms of a report: text, JSON, Markdown, HTML and one figure. Report in, text out."""
