output "url" {
  description = "Address of the OpenAI API, without /v1."
  value       = google_cloud_run_v2_service.this.uri
}

output "service_account" {
  description = "Whom the service runs as; give it what env and model_url need."
  value       = google_service_account.this.email
}

output "revision" {
  description = "Newest revision that became ready."
  value       = google_cloud_run_v2_service.this.latest_ready_revision
}
