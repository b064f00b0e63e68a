mock_provider "azurerm" {
  mock_resource "azurerm_user_assigned_identity" {
    defaults = {
      id           = "/subscriptions/0/resourceGroups/llm/providers/Microsoft.ManagedIdentity/userAssignedIdentities/zse-identity"
      principal_id = "00000000-0000-0000-0000-000000000001"
    }
  }

  mock_resource "azurerm_container_app_environment" {
    defaults = {
      id = "/subscriptions/0/resourceGroups/llm/providers/Microsoft.App/managedEnvironments/zse-env"
    }
  }
}

variables {
  image               = "registry.azurecr.io/llm:1"
  resource_group_name = "llm"
  region              = "westus3"
}

run "sleeps_on_a_serverless_gpu_by_default" {
  command = apply

  assert {
    condition     = azurerm_container_app.this.template[0].min_replicas == 0
    error_message = "It must scale to zero."
  }
  assert {
    condition     = azurerm_container_app.this.template[0].http_scale_rule[0].concurrent_requests == "16"
    error_message = "Azure wants this number as text."
  }
  assert {
    condition = contains(
      [for profile in azurerm_container_app_environment.this.workload_profile : profile.workload_profile_type],
      "Consumption-GPU-NC24-A100",
    )
    error_message = "The environment has the GPU profile from its beginning."
  }
  assert {
    condition     = azurerm_container_app.this.workload_profile_name == "gpu"
    error_message = "The app runs on the GPU profile."
  }
  assert {
    condition     = azurerm_container_app.this.ingress[0].external_enabled == false
    error_message = "It is not public unless it is said."
  }
  assert {
    condition = (
      azurerm_container_app.this.template[0].container[0].startup_probe[0].failure_count_threshold == 240
      && azurerm_container_app.this.template[0].container[0].startup_probe[0].interval_seconds == 1
    )
    error_message = "The startup window is 240 s."
  }
}

run "reads_secrets_with_its_identity" {
  command = apply

  variables {
    secrets         = { HF_TOKEN = "https://vault.vault.azure.net/secrets/hub" }
    key_vault_id    = "/subscriptions/0/resourceGroups/llm/providers/Microsoft.KeyVault/vaults/vault"
    registry_server = "registry.azurecr.io"
    registry_id     = "/subscriptions/0/resourceGroups/llm/providers/Microsoft.ContainerRegistry/registries/registry"
    startup_seconds = 600
  }

  assert {
    condition     = one(azurerm_container_app.this.secret).key_vault_secret_id == "https://vault.vault.azure.net/secrets/hub"
    error_message = "The secret is a reference."
  }
  assert {
    condition     = contains([for e in azurerm_container_app.this.template[0].container[0].env : e.secret_name], "hf-token")
    error_message = "The server gets the secret as a variable."
  }
  assert {
    condition     = azurerm_role_assignment.secrets[0].role_definition_name == "Key Vault Secrets User"
    error_message = "The identity may read the vault."
  }
  assert {
    condition     = azurerm_container_app.this.template[0].container[0].startup_probe[0].failure_count_threshold == 200
    error_message = "600 s is 200 probes, 3 s apart."
  }
}

run "refuses_a_gpu_without_kernels" {
  command = plan

  variables {
    gpu_type = "Consumption-GPU-NC8as-T4"
  }

  expect_failures = [var.gpu_type]
}

run "refuses_a_secret_in_plain_text" {
  command = plan

  variables {
    secrets = { HF_TOKEN = "hf_not_a_reference" }
  }

  expect_failures = [var.secrets]
}
