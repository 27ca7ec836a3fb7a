"""Results as JSON, Markdown, plots and pages."""
