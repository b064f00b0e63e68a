locals {
  # What says whom the server asks for a key; ZSE_PUBLIC that it asks nobody.
  has_keys = length(setintersection(
    ["ZSE_API_KEYS", "ZSE_API_KEYS_FILE", "ZSE_PUBLIC"], concat(keys(var.env), keys(var.secrets))
  )) > 0

  env = merge(
    {
      PORT              = tostring(var.port)
      ZSE_DRAIN_SECONDS = tostring(var.drain_seconds - 5)
    },
    var.model_url == "" ? {} : { ZSE_MODEL = var.model_url },
    local.has_keys ? {} : { ZSE_PUBLIC = "1" }, # what stands in front asks who comes
    var.env,
  )

  # Container Apps names secrets with lower-case letters, digits and dashes.
  secret_names = { for variable in keys(var.secrets) : variable => replace(lower(variable), "_", "-") }

  gpu_profile = "gpu"

  # A probe may fail 240 times: longer windows ask less often.
  probe_interval_seconds = ceil(var.startup_seconds / 240)
}

resource "azurerm_user_assigned_identity" "this" {
  name                = "${var.name}-identity"
  location            = var.region
  resource_group_name = var.resource_group_name
  tags                = var.tags
}

resource "azurerm_role_assignment" "pull" {
  count = var.registry_id == "" ? 0 : 1

  scope                = var.registry_id
  role_definition_name = "AcrPull"
  principal_id         = azurerm_user_assigned_identity.this.principal_id
  principal_type       = "ServicePrincipal"
}

resource "azurerm_role_assignment" "secrets" {
  count = var.key_vault_id == "" ? 0 : 1

  scope                = var.key_vault_id
  role_definition_name = "Key Vault Secrets User"
  principal_id         = azurerm_user_assigned_identity.this.principal_id
  principal_type       = "ServicePrincipal"
}

resource "azurerm_container_app_environment" "this" {
  name                       = "${var.name}-env"
  location                   = var.region
  resource_group_name        = var.resource_group_name
  logs_destination           = var.log_analytics_workspace_id == "" ? null : "log-analytics"
  log_analytics_workspace_id = var.log_analytics_workspace_id == "" ? null : var.log_analytics_workspace_id
  tags                       = var.tags

  workload_profile {
    name                  = "Consumption"
    workload_profile_type = "Consumption"
  }

  # It cannot be added to an environment that was made without any profile.
  workload_profile {
    name                  = local.gpu_profile
    workload_profile_type = var.gpu_type
  }
}

resource "azurerm_container_app" "this" {
  name                         = var.name
  resource_group_name          = var.resource_group_name
  container_app_environment_id = azurerm_container_app_environment.this.id
  workload_profile_name        = local.gpu_profile
  revision_mode                = "Single"
  tags                         = var.tags

  identity {
    type         = "UserAssigned"
    identity_ids = [azurerm_user_assigned_identity.this.id]
  }

  dynamic "registry" {
    for_each = var.registry_server == "" ? [] : [var.registry_server]

    content {
      server   = registry.value
      identity = azurerm_user_assigned_identity.this.id
    }
  }

  dynamic "secret" {
    for_each = var.secrets

    content {
      name                = local.secret_names[secret.key]
      identity            = azurerm_user_assigned_identity.this.id
      key_vault_secret_id = secret.value
    }
  }

  ingress {
    external_enabled = var.public
    target_port      = var.port
    transport        = "http"

    traffic_weight {
      latest_revision = true
      percentage      = 100
    }
  }

  template {
    min_replicas                     = var.min_instances
    max_replicas                     = var.max_instances
    cooldown_period_in_seconds       = var.idle_seconds
    termination_grace_period_seconds = var.drain_seconds

    http_scale_rule {
      name                = "requests"
      concurrent_requests = tostring(var.concurrency)
    }

    container {
      name   = "zse"
      image  = var.image
      cpu    = var.cpu
      memory = var.memory

      dynamic "env" {
        for_each = local.env

        content {
          name  = env.key
          value = env.value
        }
      }

      dynamic "env" {
        for_each = local.secret_names

        content {
          name        = env.key
          secret_name = env.value
        }
      }

      # 503 while the weights load, then 200.
      startup_probe {
        transport               = "HTTP"
        port                    = var.port
        path                    = "/health/ready"
        interval_seconds        = local.probe_interval_seconds
        timeout                 = 1
        failure_count_threshold = ceil(var.startup_seconds / local.probe_interval_seconds)
      }

      readiness_probe {
        transport               = "HTTP"
        port                    = var.port
        path                    = "/health/ready"
        interval_seconds        = 5
        timeout                 = 2
        failure_count_threshold = 3
        success_count_threshold = 1
      }

      liveness_probe {
        transport               = "HTTP"
        port                    = var.port
        path                    = "/health/live"
        interval_seconds        = 10
        timeout                 = 5
        failure_count_threshold = 3
      }
    }
  }

  lifecycle {
    precondition {
      condition     = var.min_instances <= var.max_instances
      error_message = "min_instances is above max_instances."
    }
    precondition {
      condition     = length(setintersection(keys(var.env), keys(var.secrets))) == 0
      error_message = "A variable is in env and in secrets."
    }
    precondition {
      condition     = !var.public || local.has_keys
      error_message = "A public server needs API keys: put ZSE_API_KEYS into secrets; ZSE_PUBLIC = \"1\" in env lets anyone in."
    }
    precondition {
      condition     = var.registry_id == "" || var.registry_server != ""
      error_message = "registry_id needs registry_server."
    }
  }

  depends_on = [azurerm_role_assignment.pull, azurerm_role_assignment.secrets]
}
