"""What `app` puts together around the line: where endpoints come from, who watches, who may ask."""
