"""What users import: declare tasks, submit them, follow their instances, know one's own attempt."""
