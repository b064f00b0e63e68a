locals {
  # The fewest processors and the least memory that Cloud Run allows with each GPU.
  smallest = {
    "nvidia-l4"           = { cpu = 4, memory = "16Gi" }
    "nvidia-rtx-pro-6000" = { cpu = 20, memory = "80Gi" }
  }[var.gpu_type]

  model = (
    var.model_url != "" ? var.model_url :
    var.models_bucket != "" ? "/models/${var.model_file}" :
    "" # the image knows its own
  )

  # What says whom the server asks for a key; ZSE_PUBLIC that it asks nobody.
  has_keys = length(setintersection(
    ["ZSE_API_KEYS", "ZSE_API_KEYS_FILE", "ZSE_PUBLIC"], concat(keys(var.env), keys(var.secrets))
  )) > 0

  env = merge(
    { ZSE_DRAIN_SECONDS = "8" },                # Cloud Run kills 10 s after SIGTERM
    local.has_keys ? {} : { ZSE_PUBLIC = "1" }, # what stands in front asks who comes
    local.model == "" ? {} : { ZSE_MODEL = local.model },
    var.env,
  )

  secrets = {
    for variable, secret in var.secrets : variable => {
      name    = split(":", secret)[0]
      version = length(split(":", secret)) > 1 ? split(":", secret)[1] : "latest"
    }
  }

  probe_period_seconds = 2 # a probe's timeout must be shorter than its period
}

resource "google_service_account" "this" {
  project      = var.project
  account_id   = "${var.name}-run"
  display_name = "Runs the Cloud Run service ${var.name}"
}

resource "google_secret_manager_secret_iam_member" "this" {
  for_each = toset([for secret in local.secrets : secret.name])

  project   = var.project
  secret_id = each.value
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${google_service_account.this.email}"
}

resource "google_storage_bucket_iam_member" "models" {
  count = var.models_bucket == "" ? 0 : 1

  bucket = var.models_bucket
  role   = "roles/storage.objectViewer"
  member = "serviceAccount:${google_service_account.this.email}"
}

resource "google_cloud_run_v2_service" "this" {
  project             = var.project
  name                = var.name
  location            = var.region
  ingress             = var.ingress
  deletion_protection = var.deletion_protection
  labels              = var.labels

  template {
    service_account                  = google_service_account.this.email
    execution_environment            = "EXECUTION_ENVIRONMENT_GEN2"
    timeout                          = "${var.timeout_seconds}s"
    max_instance_request_concurrency = var.concurrency
    gpu_zonal_redundancy_disabled    = !var.zonal_redundancy

    node_selector {
      accelerator = var.gpu_type
    }

    scaling {
      min_instance_count = var.min_instances
      max_instance_count = var.max_instances
    }

    dynamic "vpc_access" {
      for_each = var.network == "" ? [] : [var.network]

      content {
        egress = "PRIVATE_RANGES_ONLY"

        network_interfaces {
          network    = vpc_access.value
          subnetwork = var.subnetwork == "" ? null : var.subnetwork
        }
      }
    }

    dynamic "volumes" {
      for_each = var.models_bucket == "" ? [] : [var.models_bucket]

      content {
        name = "models"

        gcs {
          bucket    = volumes.value
          read_only = true
        }
      }
    }

    containers {
      image = var.image

      ports {
        container_port = var.port
      }

      resources {
        cpu_idle          = false # GPU services are billed for the instance, so nothing is throttled
        startup_cpu_boost = true

        limits = {
          cpu              = tostring(coalesce(var.cpu, local.smallest.cpu))
          memory           = coalesce(var.memory, local.smallest.memory)
          "nvidia.com/gpu" = "1"
        }
      }

      dynamic "env" {
        for_each = local.env

        content {
          name  = env.key
          value = env.value
        }
      }

      dynamic "env" {
        for_each = local.secrets

        content {
          name = env.key

          value_source {
            secret_key_ref {
              secret  = env.value.name
              version = env.value.version
            }
          }
        }
      }

      dynamic "volume_mounts" {
        for_each = var.models_bucket == "" ? [] : ["models"]

        content {
          name       = volume_mounts.value
          mount_path = "/models"
        }
      }

      # 503 while the weights load, then 200: traffic comes from then on.
      startup_probe {
        period_seconds    = local.probe_period_seconds
        timeout_seconds   = 1
        failure_threshold = ceil(var.startup_seconds / local.probe_period_seconds)

        http_get {
          path = "/health/ready"
          port = var.port
        }
      }

      liveness_probe {
        period_seconds    = 10
        timeout_seconds   = 5
        failure_threshold = 3

        http_get {
          path = "/health/live"
          port = var.port
        }
      }
    }
  }

  lifecycle {
    precondition {
      condition     = var.model_url == "" || var.models_bucket == ""
      error_message = "The model comes from model_url or from models_bucket, not from both."
    }
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
      condition     = coalesce(var.cpu, local.smallest.cpu) >= local.smallest.cpu
      error_message = "The GPU type needs at least ${local.smallest.cpu} processors."
    }
  }

  depends_on = [
    google_secret_manager_secret_iam_member.this,
    google_storage_bucket_iam_member.models,
  ]
}

resource "google_cloud_run_v2_service_iam_member" "invokers" {
  for_each = toset(var.public ? ["allUsers"] : var.invokers)

  project  = var.project
  location = google_cloud_run_v2_service.this.location
  name     = google_cloud_run_v2_service.this.name
  role     = "roles/run.invoker"
  member   = each.value
}
