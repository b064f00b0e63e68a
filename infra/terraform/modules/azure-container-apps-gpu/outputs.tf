output "url" {
  description = "Address of the OpenAI API, without /v1."
  value       = "https://${azurerm_container_app.this.ingress[0].fqdn}"
}

output "identity_principal_id" {
  description = "Principal that the app runs as; give it what env and model_url need."
  value       = azurerm_user_assigned_identity.this.principal_id
}

output "environment_id" {
  description = "Container Apps environment; other apps in it reach a service that is not public."
  value       = azurerm_container_app_environment.this.id
}
